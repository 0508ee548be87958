// Drawings of the tests, and files of them in each format.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::test {

struct PlainStroke {
  std::vector<double> x, y, t;  // t empty: simplified
};

struct PlainDrawing {
  std::string word = "cat";
  int64_t key_id = 1;
  std::vector<PlainStroke> strokes;
  std::string country = "DE";
  bool recognized = true;
  std::string timestamp = "2017-03-02 23:25:10.07453 UTC";
  uint32_t seconds = 1488497110;  // that
};

inline std::string json_of(const std::vector<PlainStroke>& strokes) {
  std::vector<std::string> words;
  for (const PlainStroke& stroke : strokes) {
    std::string word =
        fmt::format("[[{}],[{}]", fmt::join(stroke.x, ","), fmt::join(stroke.y, ","));
    if (!stroke.t.empty()) word += fmt::format(",[{}]", fmt::join(stroke.t, ","));
    words.push_back(word + "]");
  }
  return fmt::format("[{}]", fmt::join(words, ","));
}

inline std::string ndjson_of(const PlainDrawing& drawing) {
  return fmt::format(
      R"({{"word":"{}","countrycode":"{}","timestamp":"{}","recognized":{},"key_id":"{}",)"
      "\"drawing\":{}}}\n",
      drawing.word, drawing.country, drawing.timestamp, drawing.recognized, drawing.key_id,
      json_of(drawing.strokes));
}

inline constexpr const char* kKaggleHeader =
    "key_id,countrycode,drawing,recognized,timestamp,word\n";

inline std::string csv_of(const PlainDrawing& drawing) {
  return fmt::format("{},{},\"{}\",{},{},{}\n", drawing.key_id, drawing.country,
                     json_of(drawing.strokes), drawing.recognized ? "True" : "False",
                     drawing.timestamp, drawing.word);
}

// As Google's example of a parser reads it: little-endian, without padding.
inline std::string binary_of(const PlainDrawing& drawing) {
  std::string bytes;
  const auto put = [&](uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  };
  put(static_cast<uint64_t>(drawing.key_id), 8);
  bytes += drawing.country;
  put(drawing.recognized ? 1 : 0, 1);
  put(drawing.seconds, 4);
  put(drawing.strokes.size(), 2);
  for (const PlainStroke& stroke : drawing.strokes) {
    put(stroke.x.size(), 2);
    for (const auto& list : {stroke.x, stroke.y})
      for (const double value : list) put(static_cast<uint64_t>(value), 1);
  }
  return bytes;
}

}  // namespace tutti::test
