/// What the parsers of drawings share.
///
/// Thread rule: one thread at a time per object; pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/sources/detail/drawing.h"
#include "tutti/data/stroke_field.h"

namespace tutti::data::detail {

/// Puts strokes together, and refuses those that are none.
class DrawingBuilder {
 public:
  /// `place` must outlive this.
  DrawingBuilder(Drawing& drawing, const std::string& place) : drawing_(drawing), place_(place) {}

  /// x and y, or x, y and times. Throws DataError.
  void add(std::span<const std::vector<double>> lists);
  /// Throws DataError where there was no stroke.
  void finish() const;

 private:
  void add_point(std::span<const std::vector<double>> lists, size_t i);
  double since_first(double time, size_t point);
  void require_on_canvas(const char* axis, double value, size_t point) const;
  [[noreturn]] void fail(const std::string& words) const;
  [[noreturn]] void fail(size_t point, const std::string& words) const;

  Drawing& drawing_;
  const std::string& place_;
  int64_t stroke_ = 0;                // those that are in
  double first_time_ = 0, time_ = 0;  // of the first point and of the last
};

/// Each throws DataError, with `place`, for what is no such.
void set_country(Drawing& drawing, std::string_view code, const std::string& place);
void set_key(Drawing& drawing, std::string_view digits, const std::string& place);
/// As "2017-03-02 23:25:10.07453 UTC".
void set_timestamp(Drawing& drawing, std::string_view text, const std::string& place);

}  // namespace tutti::data::detail
