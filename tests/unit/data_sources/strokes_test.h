// What tests of strokes() share: drawings, and what is said of files of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/sources/strokes.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data_sources/drawings.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {

namespace fs = std::filesystem;

inline const std::vector<PlainStroke> kCross{{{0, 255}, {0, 200}, {}},
                                             {{255, 128, 0}, {3, 4, 5}, {}}};
inline const std::vector<PlainStroke> kRaw{{{-10.5, 700}, {20, 30.25}, {0, 40}}, {{5}, {6}, {41}}};
inline const std::vector<float> kPointsOfCross{0, 0, 0,   0, 255, 200, 1, 0, 255, 3,
                                               2, 1, 128, 4, 3,   1,   0, 5, 4,   1};

class StrokeFiles : public testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& bytes) {
    put_bytes(folder_ / name, bytes);
    return folder_ / name;
  }
  // What reading row `row` of that says.
  std::string refusal(const std::string& name, const std::string& bytes, int64_t row = 0,
                      StrokesOptions options = {}) {
    const fs::path path = put(name, bytes);
    return message_of<DataError>([&] { row_of(strokes(path, options), row); });
  }
  std::string refusal_of_strokes(const std::string& drawing) {
    return refusal("cat.ndjson", R"({"word":"cat","drawing":)" + drawing + "}\n");
  }
  TempFolder folder_;
};

}  // namespace tutti::data
