/// What a point of a drawing is made of: the rows of strokes() and of the transforms of strokes.
#pragma once

#include <cstdint>

namespace tutti::data {

/// The columns of strokes float32 [?, kStrokeFields].
enum StrokeField : uint8_t {
  kStrokeX,       ///< to the right
  kStrokeY,       ///< down
  kStrokeTime,    ///< never less than the point before has
  kStrokeNumber,  ///< of the stroke, from 0 on
  kStrokeFields
};

}  // namespace tutti::data
