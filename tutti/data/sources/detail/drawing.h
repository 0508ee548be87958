/// Drawing: one of Quick, Draw!'s as its files have it, and the parsers of these.
///
/// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data::detail {

enum class DrawingFormat : uint8_t { ndjson, binary, csv };

/// Simplified: whole numbers 0 to 255, two points a stroke or more, no times. Raw: pixels of a
/// screen, times that never run back, and that are at most 1e9 ms after the first.
enum class DrawingForm : uint8_t { simplified, raw };

struct Drawing {
  std::vector<float> points;  ///< kStrokeFields numbers each
  DrawingForm form = DrawingForm::simplified;
  std::optional<std::string> word;
  std::optional<int64_t> key_id;  ///< below 2^63
  std::string countrycode;
  bool recognized = true;
  int64_t timestamp = 0;  ///< Unix seconds
};

/// The fields of a line of Kaggle's CSV; -1: it has none.
struct DrawingFields {
  int64_t key_id = -1, countrycode = -1, drawing = -1, recognized = -1, timestamp = -1, word = -1;
  int64_t count = 0;
};

/// Of the line or record of a drawing: what has more is damaged, and is not read into memory.
inline constexpr int64_t kMostDrawingBytes = 64 << 20;

/// What a file that begins so and is called so holds; nothing: no drawings.
std::optional<DrawingFormat> drawing_format(std::string_view front, std::string_view name);

/// Of a first line. Throws DataError, with `place`, where key_id or drawing is not there, and for a
/// field that is there twice.
DrawingFields drawing_fields(std::string_view line, const std::string& place);

/// Each throws DataError, with `place`, stroke and point, what was got and expected.
Drawing parse_drawing_line(std::string_view line, const std::string& place);
Drawing parse_drawing_row(std::string_view line, const DrawingFields& fields,
                          const std::string& place);
Drawing parse_drawing_record(std::string_view record, const std::string& place);

/// The word of a line, without a look at the rest; nothing where it is damaged or has none.
std::optional<std::string> word_of_drawing_line(std::string_view line);
std::optional<std::string> word_of_drawing_row(std::string_view line, const DrawingFields& fields);

/// Bytes of the record that `bytes` begins with; nothing where they end before it does.
std::optional<int64_t> drawing_record_bytes(std::string_view bytes);

/// Whether ISO 3166-1 or the data's authors ("ZZ": unknown) have that code.
bool is_country(std::string_view code);

}  // namespace tutti::data::detail
