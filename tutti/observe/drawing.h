/// Drawings of what happened between several: a column each, time from top to bottom, bars for what
/// each did and arrows for what one sent to another. As SVG that stands alone, and as text.
///
/// An SVG can be read 360 pixels wide, on a telephone, and is half as large again where there is
/// room. Kinds are told apart by colours that the colour-blind tell apart (Okabe and Ito's), and by
/// dashes and hatching where there are no colours; dark where the reader's screen is, never in
/// print.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::drawings {

/// first, second and third are what the drawing says of them (Drawing::legend).
enum class Kind : uint8_t { first, second, third, wait };

/// What a lane did from `begin` to `end`.
struct Bar {
  int lane = 0;
  double begin = 0, end = 0;
  Kind kind = Kind::first;
  std::string label{};  ///< inside, where it is long enough; short: "F3"
  std::string words{};  ///< what a pointer on it shows
};

/// Something that one lane sent to another.
struct Arrow {
  int from = 0, to = 0;
  double begin = 0, end = 0;
  Kind kind = Kind::first;
  std::string label{};  ///< "" : none; short
  std::string words{};
};

/// What the axis of time says at a place, and where a frame of the text ends.
struct Tick {
  double at = 0;
  std::string name;
};

struct Drawing {
  std::string title;
  std::vector<std::string> lanes;  ///< 1 to kMostLanes names
  std::vector<Bar> bars;           ///< begin <= end
  std::vector<Arrow> arrows;       ///< between two lanes
  std::vector<Tick> ticks;         ///< ascending, one or more; the drawing ends with the last
  std::vector<std::pair<Kind, std::string>> legend;  ///< kinds that are there, and what they are
  std::vector<std::string> notes;                    ///< lines below
  /// The last lane is the first one once more, so that what goes round a ring need not cross all.
  bool closes_ring = false;
};

/// A column needs the width of two digits.
inline constexpr int kMostLanes = 13;
/// More of a lane than this is no drawing any more.
inline constexpr int kMostBars = 4'000;

/// Throws UsageError for lanes, bars or ticks that are not as above; names got and expected.
void check(const Drawing& drawing);

/// Throws as check().
std::string svg(const Drawing& drawing);

/// One text a tick: the lanes as rows, from left to right up to that tick, then what was sent and
/// who waited since the tick before. Lines of at most `columns` characters, 60 or more; ASCII but
/// for what names have. Throws as check().
std::vector<std::string> frames(const Drawing& drawing, int columns = 78);

}  // namespace tutti::drawings
