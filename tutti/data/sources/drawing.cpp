// Drawings of Google's binary files, and what all parsers of drawings share.
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>

#include "tutti/base/typed.h"
#include "tutti/data/sources/detail/drawing_builder.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data::detail {
namespace {

constexpr double kMostSimplified = 255;
constexpr double kMostRaw = 100'000;  // pixels, either way: no screen is so large
constexpr double kMostMillis = 1e9;   // from the first point on: nobody draws for eleven days
constexpr int64_t kRecordHeadBytes = 17;
constexpr const char* kNamesOfLists[] = {"x", "y", "times"};

// "2017-03-02 23:25:10.07453 UTC", of which the fraction and the zone may be left out.
std::optional<int64_t> unix_seconds(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:dd";
  if (text.size() < kForm.size()) return std::nullopt;
  for (size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != kForm[i]) return std::nullopt;
  std::string_view rest = text.substr(kForm.size());
  if (rest.ends_with(" UTC")) rest.remove_suffix(4);
  if (!rest.empty() &&
      (rest[0] != '.' || rest.find_first_not_of("0123456789", 1) != std::string_view::npos))
    return std::nullopt;
  const auto number = [&](size_t at, size_t digits) {
    return *number_in<int>(text.substr(at, digits));
  };
  const std::chrono::year_month_day day{std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  const int hour = number(11, 2), minute = number(14, 2), second = number(17, 2);
  if (!day.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  return std::chrono::sys_days(day).time_since_epoch().count() * int64_t{86400} + hour * 3600 +
         minute * 60 + second;
}

template <class T>
T little_endian(std::string_view bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

void DrawingBuilder::add(std::span<const std::vector<double>> lists) {
  const auto form = lists.size() == 3 ? DrawingForm::raw : DrawingForm::simplified;
  if (stroke_ > 0 && form != drawing_.form)
    fail(fmt::format("got {} lists, expected {}, as stroke 1 has", lists.size(),
                     drawing_.form == DrawingForm::raw ? 3 : 2));
  drawing_.form = form;
  const size_t points = lists[0].size(), least = form == DrawingForm::raw ? 1 : 2;
  for (size_t list = 1; list < lists.size(); ++list)
    if (lists[list].size() != points)
      fail(fmt::format("got {} x and {} {}, expected as many: is it cut off?", points,
                       lists[list].size(), kNamesOfLists[list]));
  if (points < least)
    fail(fmt::format("got {} point{}, expected {} or more", points, points == 1 ? "" : "s", least));
  for (size_t i = 0; i < points; ++i) add_point(lists, i);
  ++stroke_;
}

void DrawingBuilder::finish() const {
  if (stroke_ == 0)
    throw DataError(fmt::format("{}: got a drawing without strokes, expected one or more", place_));
}

void DrawingBuilder::add_point(std::span<const std::vector<double>> lists, size_t i) {
  const double x = lists[0][i], y = lists[1][i];
  require_on_canvas("x", x, i);
  require_on_canvas("y", y, i);
  const size_t number = drawing_.points.size() / kStrokeFields;
  auto time = static_cast<double>(number);
  if (lists.size() == 3) time = since_first(lists[2][i], i);
  const float fields[] = {static_cast<float>(x), static_cast<float>(y), static_cast<float>(time),
                          static_cast<float>(stroke_)};
  drawing_.points.insert(drawing_.points.end(), std::begin(fields), std::end(fields));
}

double DrawingBuilder::since_first(double time, size_t point) {
  if (drawing_.points.empty()) first_time_ = time_ = time;
  if (time < time_)
    fail(point,
         fmt::format("got time {} after {}, expected times that do not run back", time, time_));
  if (!(time - first_time_ <= kMostMillis))
    fail(point, fmt::format("got time {}, expected at most {} ms after the first point's, {}", time,
                            kMostMillis, first_time_));
  time_ = time;
  return time - first_time_;
}

void DrawingBuilder::require_on_canvas(const char* axis, double value, size_t point) const {
  if (drawing_.form == DrawingForm::raw) {
    if (!(std::abs(value) <= kMostRaw))
      fail(point, fmt::format("got {} {}, expected pixels of a screen, -{} to {}", axis, value,
                              kMostRaw, kMostRaw));
  } else if (!(value >= 0 && value <= kMostSimplified && value == std::floor(value))) {
    fail(point, fmt::format("got {} {}, expected a whole number, 0 to 255: outside the canvas",
                            axis, value));
  }
}

void DrawingBuilder::fail(const std::string& words) const {
  throw DataError(fmt::format("{}, stroke {}: {}", place_, stroke_ + 1, words));
}

void DrawingBuilder::fail(size_t point, const std::string& words) const {
  throw DataError(
      fmt::format("{}, stroke {}, point {}: {}", place_, stroke_ + 1, point + 1, words));
}

void set_country(Drawing& drawing, std::string_view code, const std::string& place) {
  if (!is_country(code))
    throw DataError(fmt::format("{}: got country code {}, expected one of ISO 3166-1, or ZZ", place,
                                quoted_words(code)));
  drawing.countrycode = code;
}

void set_key(Drawing& drawing, std::string_view digits, const std::string& place) {
  drawing.key_id = number_in<int64_t>(digits);
  if (!drawing.key_id || *drawing.key_id < 0)
    throw DataError(fmt::format("{}: got key_id {}, expected a whole number below 2^63", place,
                                quoted_words(digits)));
}

void set_timestamp(Drawing& drawing, std::string_view text, const std::string& place) {
  const auto seconds = unix_seconds(text);
  if (!seconds)
    throw DataError(fmt::format("{}: got timestamp {}, expected as 2017-03-02 23:25:10 UTC", place,
                                quoted_words(text)));
  drawing.timestamp = *seconds;
}

std::optional<int64_t> drawing_record_bytes(std::string_view bytes) {
  if (std::ssize(bytes) < kRecordHeadBytes) return std::nullopt;
  const auto strokes = little_endian<uint16_t>(bytes, 15);
  size_t at = kRecordHeadBytes;
  for (int64_t i = 0; i < strokes; ++i) {
    if (bytes.size() < at + 2) return std::nullopt;
    at += 2 + 2 * size_t{little_endian<uint16_t>(bytes, at)};
    if (bytes.size() < at) return std::nullopt;
  }
  return static_cast<int64_t>(at);
}

Drawing parse_drawing_record(std::string_view record, const std::string& place) {
  if (drawing_record_bytes(record) != std::ssize(record))
    throw DataError(
        fmt::format("{}: got {} bytes, expected those of one drawing", place, record.size()));
  Drawing drawing;
  drawing.key_id = little_endian<int64_t>(record, 0);
  if (*drawing.key_id < 0)
    throw DataError(fmt::format("{}: got key_id {}, expected one below 2^63", place,
                                little_endian<uint64_t>(record, 0)));
  set_country(drawing, record.substr(8, 2), place);
  const auto recognized = static_cast<uint8_t>(record[10]);
  if (recognized > 1)
    throw DataError(fmt::format("{}: got recognized {}, expected 0 or 1", place, recognized));
  drawing.recognized = recognized == 1;
  drawing.timestamp = little_endian<uint32_t>(record, 11);
  const auto strokes = little_endian<uint16_t>(record, 15);
  DrawingBuilder builder(drawing, place);
  std::vector<double> lists[2];
  size_t at = kRecordHeadBytes;
  for (int64_t i = 0; i < strokes; ++i) {
    const size_t points = little_endian<uint16_t>(record, at);
    at += 2;
    for (std::vector<double>& list : lists) {
      const auto* const values = reinterpret_cast<const uint8_t*>(record.data()) + at;
      list.assign(values, values + points);
      at += points;
    }
    builder.add(lists);
  }
  builder.finish();
  return drawing;
}

}  // namespace tutti::data::detail
