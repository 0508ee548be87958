// Drawings as Quick, Draw! has them, made by the tests: three things and a scribble, as ndjson and
// as Kaggle's CSV.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/random.h"

#include "tests/support/temp_folder.h"

namespace tutti::test {

struct MadeDrawing {
  int64_t key = 0;
  std::string word;
  std::string strokes;  ///< JSON: [[[x...], [y...]], ...]
};

inline const std::vector<std::string> kDrawnThings = {"dash", "square", "tall post", "scribble"};

/// `count` of each, in turn; keys from `first_key` on.
inline std::vector<MadeDrawing> made_drawings(int count, uint64_t seed, int64_t first_key) {
  RandomStream random(seed);
  const auto near = [&](int64_t value) { return value + static_cast<int64_t>(random.below(40)); };
  std::vector<MadeDrawing> all;
  for (int i = 0; i < count * 4; ++i) {
    const std::string& word = kDrawnThings[static_cast<size_t>(i % 4)];
    std::vector<int64_t> x, y;
    if (word == "dash") x = {near(0), near(100), near(215)}, y = {near(0), near(0), near(0)};
    if (word == "tall post") x = {near(0), near(0)}, y = {near(0), near(215)};
    if (word == "square")
      x = {near(0), near(215), near(215), near(0), near(0)},
      y = {near(0), near(0), near(215), near(215), near(0)};
    if (word == "scribble")
      for (int point = 0; point < 6; ++point)
        x.push_back(near(random.below(215))), y.push_back(near(random.below(215)));
    all.push_back({first_key + i, word,
                   fmt::format("[[[{}], [{}]], [[{}, 5], [9, 9]]]", fmt::join(x, ", "),
                               fmt::join(y, ", "), near(100))});
  }
  return all;
}

/// A file a word, WORD.ndjson.
inline void put_ndjson(const std::filesystem::path& folder,
                       const std::vector<MadeDrawing>& drawings) {
  std::filesystem::create_directories(folder);
  for (const std::string& word : kDrawnThings) {
    std::string lines;
    for (const MadeDrawing& drawing : drawings)
      if (drawing.word == word)
        lines += fmt::format(
            R"({{"word":"{}","countrycode":"NO","timestamp":"2017-03-02 23:25:10.07453 UTC",)"
            R"("recognized":true,"key_id":"{}","drawing":{}}})"
            "\n",
            word, drawing.key, drawing.strokes);
    put_bytes(folder / (word + ".ndjson"), lines);
  }
}

/// Kaggle's test_simplified.csv: key_id,countrycode,drawing.
inline void put_kaggle_test(const std::filesystem::path& file,
                            const std::vector<MadeDrawing>& drawings) {
  std::string text = "key_id,countrycode,drawing\n";
  for (const MadeDrawing& drawing : drawings)
    text += fmt::format("{},NO,\"{}\"\n", drawing.key, drawing.strokes);
  put_bytes(file, text);
}

/// key_id,word: what is true of them.
inline void put_solution(const std::filesystem::path& file,
                         const std::vector<MadeDrawing>& drawings) {
  std::string text = "key_id,word\n";
  for (const MadeDrawing& drawing : drawings)
    text += fmt::format("{},{}\n", drawing.key, drawing.word);
  put_bytes(file, text);
}

}  // namespace tutti::test
