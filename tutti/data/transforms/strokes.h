/// Transforms of strokes: to bitmaps for networks of images, to sequences for recurrent ones.
///
///   data.map(transforms::random_strokes())  // to train on: drawn otherwise in every epoch
///   data.map(transforms::strokes_to_bitmap(64, {.time = true})).map(transforms::to_tensor())
///   data.map(transforms::strokes_to_sequence(100))
///
/// They act on column 0, float32 [?, 4] as strokes() has it: x, y, time, number of the stroke.
/// columns() throws UsageError for anything else, apply() DataError for a drawing without points,
/// and for a value that is no finite number, or beyond 1e30 either way: point, column, value.
/// A drawing is moved and scaled, by one factor, so that its bounding box fits: where it was drawn,
/// and how large, does not count. Equal strokes, equal bytes, on every machine.
/// Thread rule: immutable, as all transforms.
#pragma once

#include <cstdint>

#include "tutti/data/transform.h"

namespace tutti::data::transforms {

/// -> strokes, as another might have drawn them: x and y become (1 + a) x + b y and c x + (1 + d)
/// y, with a, b, c and d drawn from -amount to amount; mirrored left to right with that
/// probability. 0 <= amount <= 0.5. "random_strokes(0.2, mirror 0.5)"
TransformHandle random_strokes(double amount = 0.2, double mirror = 0);

struct StrokesToBitmapOptions {
  double line = 2;    ///< width in pixels, 1 to side / 2; ends are round
  bool time = false;  ///< three channels, below
};

/// -> uint8 [1, side, side]: lines, anti-aliased, 0 background, 255 ink; the box in the middle,
/// half the line's width and half a pixel from the border. With `time` uint8 [3, side, side]: ink;
/// ink times 1 - s / S, for stroke s of S, so that the first is the brightest; ink times 1 - t / (2
/// T) for the time t of T, of a line that of its end. Where lines cross the brighter counts. 4 <=
/// side <= 4096. "strokes_to_bitmap(64, line 2, time)"
TransformHandle strokes_to_bitmap(int64_t side, StrokesToBitmapOptions options = {});

struct StrokesToSequenceOptions {
  bool time = false;    ///< a fifth number, below
  bool length = false;  ///< a column `length` int64 [], the points that are there, behind the first
};

/// -> float32 [length, 4], a point each: dx, dy from the point before it, in lengths of the box's
/// longer side (the first: 0, 0); pen, 1 where a line is drawn to it, 0 where the pen was lifted
/// (a stroke's first); mask, 1 for a point, 0 for padding, of which all is 0. Of a drawing with
/// more points the first `length` are taken. With `time` [length, 5]: before the mask the time from
/// the point before, as a share of the drawing's. 1 <= length <= 65536.
/// "strokes_to_sequence(100, time, length)"
TransformHandle strokes_to_sequence(int64_t length, StrokesToSequenceOptions options = {});

}  // namespace tutti::data::transforms
