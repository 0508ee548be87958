// Drawings of lines: JSON, and Kaggle's CSV, whose drawings are JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>

#include "tutti/base/json.h"
#include "tutti/data/sources/detail/drawing_builder.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data::detail {
namespace {

// Of what std::from_chars() takes: "1.", "1.e5", ".5" and "02" are not.
bool is_json_number(std::string_view text) {
  const auto digit = [&](size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
  };
  const size_t first = text.starts_with('-') ? 1 : 0, point = text.find('.');
  return digit(first) && digit(text.size() - 1) && !(text[first] == '0' && digit(first + 1)) &&
         (point == std::string_view::npos || digit(point + 1));
}

constexpr size_t kUsualNumbers = 512;  // of points: most drawings have less

// Reads the JSON that drawings are made of, which needs no tree: a value at a time, in their order.
class DrawingReader {
 public:
  DrawingReader(std::string_view text, const std::string& place)
      : text_(text), place_(place), at_(text.data()), end_(at_ + text.size()) {}

  /// Calls member(key) at the value of each member of an object, until it returns false.
  template <class Member>
  void read_object(const Member& member) {
    expect('{', "an object: {\"word\": ..., \"drawing\": ...}");
    if (next_is('}')) return;
    do {
      skip_blanks();
      const std::string key = read_string("a key");
      expect(':', "':' behind a key");
      skip_blanks();
      if (!member(key)) return;
    } while (next_is(','));
    expect('}', "',' or '}'");
  }

  void read_strokes(Drawing& drawing) {
    DrawingBuilder builder(drawing, place_);
    if (!drawing.points.empty()) fail("got a second drawing, expected one");
    expect('[', "a list of strokes: [[[x, ...], [y, ...]], ...]");
    drawing.points.reserve(kUsualNumbers);
    if (!next_is(']')) {
      do {
        read_stroke(builder);
      } while (next_is(','));
      expect(']', "',' or ']' behind a stroke");
    }
    builder.finish();
  }

  std::string read_string(const char* expected) {
    const char* const begin = at_;
    if (at_ == end_ || *at_ != '"') fail_at(expected);
    bool escaped = false;
    for (++at_; at_ != end_ && *at_ != '"'; ++at_) {
      if (static_cast<unsigned char>(*at_) < ' ') fail_at("no control character in a string");
      if (*at_ == '\\') {
        escaped = true;
        if (++at_ == end_) break;
      }
    }
    if (at_ == end_) fail_at("the end of a string");
    ++at_;
    const std::string_view quoted(begin, at_);
    if (escaped) {
      try {
        return parse_json(quoted).text();
      } catch (const JsonError&) {
        fail("a string is no JSON");
      }
    }
    return std::string(quoted.substr(1, quoted.size() - 2));
  }

  /// A string's text, or what stands there as it is.
  std::string read_word() {
    if (at_ != end_ && *at_ == '"') return read_string("a string");
    return std::string(read_value());
  }

  /// Any JSON, as it stands there.
  std::string_view read_value() {
    const char* const begin = at_;
    skip_value();
    const std::string_view value(begin, at_);
    if (value != "true" && value != "false" && !is_json(value)) fail("a value is no JSON");
    return value;
  }

  /// Behind what may be a value: what lies between its ends is not looked at.
  void skip_value() {
    int64_t depth = 0;
    do {
      skip_blanks();
      const char letter = at_ == end_ ? '\0' : *at_;
      if (letter == '"') {
        read_string("a string");
      } else if (letter == '[' || letter == '{') {
        ++depth, ++at_;
      } else if (depth > 0 && (letter == ']' || letter == '}')) {
        --depth, ++at_;
      } else if (depth > 0 && (letter == ',' || letter == ':')) {
        ++at_;
      } else {
        skip_literal();
      }
    } while (depth > 0);
  }

  void require_end() {
    skip_blanks();
    if (at_ != end_) fail_at("nothing more");
  }

  [[noreturn]] void fail(const std::string& words) const {
    try {
      parse_json(text_);
    } catch (const JsonError& error) {
      throw DataError(fmt::format("{}: no JSON: {}", place_, error.what()));
    }
    throw DataError(fmt::format("{}: {}", place_, words));
  }

 private:
  void skip_blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }

  bool next_is(char letter) {
    skip_blanks();
    if (at_ == end_ || *at_ != letter) return false;
    ++at_;
    return true;
  }

  void expect(char letter, const char* expected) {
    if (!next_is(letter)) fail_at(expected);
  }

  void skip_literal() {
    const char* const begin = at_;
    while (at_ != end_ && std::strchr(",:[]{}\" \t\r\n", *at_) == nullptr) ++at_;
    if (at_ == begin) fail_at("a value");
  }

  void read_stroke(DrawingBuilder& builder) {
    expect('[', "a stroke: [[x, ...], [y, ...]], and times of a raw one");
    size_t lists = 0;
    do {
      if (lists == std::size(lists_)) fail_at("at most x, y and times in a stroke");
      read_numbers(lists_[lists++]);
    } while (next_is(','));
    expect(']', "']' behind the lists of a stroke");
    if (lists < 2) fail_at("x and y in a stroke");
    builder.add(std::span(lists_).first(lists));
  }

  void read_numbers(std::vector<double>& numbers) {
    numbers.clear();
    expect('[', "a list of numbers");
    if (next_is(']')) return;
    do {
      skip_blanks();
      numbers.push_back(read_number());
    } while (next_is(','));
    expect(']', "',' or ']' behind a number");
  }

  double read_number() {
    // What nearly all are: a few digits. A 0 in front of others is no JSON.
    int32_t whole = 0;
    const char* at = at_;
    while (at != end_ && at - at_ < 4 && *at >= '0' && *at <= '9')
      whole = 10 * whole + (*at++ - '0');
    const bool ends = at != end_ && (*at == ',' || *at == ']');
    if (ends && at != at_ && (*at_ != '0' || at - at_ == 1)) {
      at_ = at;
      return whole;
    }
    double number = 0;
    const auto real = std::from_chars(at_, end_, number);
    if (real.ec != std::errc{} || !std::isfinite(number) || !is_json_number({at_, real.ptr}))
      fail_at("a number");
    at_ = real.ptr;
    return number;
  }

  [[noreturn]] void fail_at(const char* expected) const {
    fail(fmt::format("got {} at character {}, expected {}",
                     at_ == end_ ? std::string("the end") : fmt::format("'{}'", *at_),
                     at_ - text_.data() + 1, expected));
  }

  std::string_view text_;
  const std::string& place_;
  const char* at_;
  const char* end_;
  std::vector<double> lists_[3];
};

void require_drawing(const Drawing& drawing, const DrawingReader& reader) {
  if (drawing.points.empty())
    reader.fail("got no \"drawing\", expected one, as Quick, Draw! has it");
}

// The fields of a line; a field in quotes without these.
std::vector<std::string_view> split_row(std::string_view line, const std::string& place) {
  while (line.ends_with('\r') || line.ends_with('\n')) line.remove_suffix(1);
  std::vector<std::string_view> fields;
  for (;;) {
    size_t end = line.find(',');
    std::string_view field = line.substr(0, end);
    if (line.starts_with('"')) {
      const size_t quote = line.find('"', 1);
      if (quote == std::string_view::npos)
        throw DataError(fmt::format("{}: got a quote that is never closed: is it cut off?", place));
      field = line.substr(1, quote - 1);
      end = quote + 1 < line.size() ? quote + 1 : std::string_view::npos;
      if (end != std::string_view::npos && line[end] != ',')
        throw DataError(
            fmt::format("{}: got '{}' behind a closing quote, expected a comma", place, line[end]));
    }
    fields.push_back(field);
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> fields_of_row(std::string_view line, const DrawingFields& fields,
                                            const std::string& place) {
  std::vector<std::string_view> found = split_row(line, place);
  if (std::ssize(found) != fields.count)
    throw DataError(fmt::format("{}: got {} fields, expected {}, as the first line has", place,
                                found.size(), fields.count));
  return found;
}

bool has_columns_of_drawings(std::string_view line) {
  try {
    const std::vector<std::string_view> names = split_row(line, "");
    return std::ranges::count(names, "key_id") > 0 && std::ranges::count(names, "drawing") > 0;
  } catch (const DataError&) {  // a quote that is never closed
    return false;
  }
}

}  // namespace

DrawingFields drawing_fields(std::string_view line, const std::string& place) {
  DrawingFields fields;
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  const std::vector<std::string_view> names = split_row(line, place);
  fields.count = std::ssize(names);
  const auto find = [&](const char* name, int64_t& index) {
    const auto at = std::ranges::find(names, name);
    if (at != names.end()) index = at - names.begin();
    if (std::ranges::count(names, name) > 1)
      throw DataError(fmt::format("{}: got the column \"{}\" twice", place, name));
  };
  find("key_id", fields.key_id);
  find("countrycode", fields.countrycode);
  find("drawing", fields.drawing);
  find("recognized", fields.recognized);
  find("timestamp", fields.timestamp);
  find("word", fields.word);
  for (const auto& [name, index] :
       {std::pair{"key_id", fields.key_id}, {"drawing", fields.drawing}})
    if (index < 0)
      throw DataError(fmt::format(
          "{}: got columns {}, expected {} too: key_id,countrycode,drawing,recognized,timestamp,"
          "word",
          place, fmt::join(names, ","), name));
  return fields;
}

Drawing parse_drawing_line(std::string_view line, const std::string& place) {
  line = line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
  Drawing drawing;
  DrawingReader reader(line, place);
  reader.read_object([&](const std::string& key) {
    if (key == "drawing") {
      reader.read_strokes(drawing);
    } else if (key == "word") {
      drawing.word = reader.read_string("a word in quotes");
    } else if (key == "countrycode") {
      set_country(drawing, reader.read_word(), place);
    } else if (key == "key_id") {
      set_key(drawing, reader.read_word(), place);
    } else if (key == "timestamp") {
      set_timestamp(drawing, reader.read_word(), place);
    } else if (key == "recognized") {
      const std::string word = reader.read_word();
      if (word != "true" && word != "false")
        reader.fail(fmt::format("got recognized {}, expected true or false", quoted_words(word)));
      drawing.recognized = word == "true";
    } else {
      reader.read_value();
    }
    return true;
  });
  reader.require_end();
  require_drawing(drawing, reader);
  return drawing;
}

Drawing parse_drawing_row(std::string_view line, const DrawingFields& fields,
                          const std::string& place) {
  const std::vector<std::string_view> row = fields_of_row(line, fields, place);
  const auto at = [&](int64_t index) { return row[static_cast<size_t>(index)]; };
  Drawing drawing;
  set_key(drawing, at(fields.key_id), place);
  if (fields.countrycode >= 0) set_country(drawing, at(fields.countrycode), place);
  if (fields.timestamp >= 0) set_timestamp(drawing, at(fields.timestamp), place);
  if (fields.word >= 0) drawing.word = at(fields.word);
  if (fields.recognized >= 0) {
    const std::string_view word = at(fields.recognized);
    drawing.recognized = word == "True" || word == "true";
    if (!drawing.recognized && word != "False" && word != "false")
      throw DataError(
          fmt::format("{}: got recognized {}, expected True or False", place, quoted_words(word)));
  }
  const std::string column = place + ", column \"drawing\"";
  DrawingReader reader(at(fields.drawing), column);
  reader.read_strokes(drawing);
  reader.require_end();
  return drawing;
}

std::optional<std::string> word_of_drawing_line(std::string_view line) {
  std::optional<std::string> word;
  try {
    const std::string place;
    DrawingReader reader(line, place);
    reader.read_object([&](const std::string& key) {
      if (key == "word")
        word = reader.read_string("a word");
      else
        reader.skip_value();
      return !word;
    });
  } catch (const DataError&) {  // whoever reads the line says it
    return std::nullopt;
  }
  return word;
}

std::optional<std::string> word_of_drawing_row(std::string_view line, const DrawingFields& fields) {
  if (fields.word < 0) return std::nullopt;
  try {
    return std::string(fields_of_row(line, fields, "")[static_cast<size_t>(fields.word)]);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

std::optional<DrawingFormat> drawing_format(std::string_view front, std::string_view name) {
  if (front.starts_with(kByteOrderMark)) front.remove_prefix(kByteOrderMark.size());
  if (name.ends_with(".bin")) {
    const auto bytes = drawing_record_bytes(front);
    const bool fits = bytes && is_country(front.substr(8, 2)) && front[10] >= 0 && front[10] <= 1;
    return fits ? std::optional(DrawingFormat::binary) : std::nullopt;
  }
  const std::string_view line = front.substr(0, front.find('\n'));
  if (line.starts_with('{')) {
    const bool fits = line.find("\"drawing\"") != std::string_view::npos &&
                      line.find("\"word\"") != std::string_view::npos;
    return fits ? std::optional(DrawingFormat::ndjson) : std::nullopt;
  }
  return has_columns_of_drawings(line) ? std::optional(DrawingFormat::csv) : std::nullopt;
}

}  // namespace tutti::data::detail
