/// `tutti train`, `evaluate` and `predict` on data of a user's own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/jobs/command_line/json_lines.h"
#include "tests/jobs/command_line/user_data.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

using Words = std::vector<std::string>;

inline CommandResult tutti(const std::string& command, Words words, const Words& more = {}) {
  words.insert(words.begin(), {TUTTI_PROGRAM, command});
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words, {}, Millis{240'000});
}

inline nlohmann::json first_line(const std::filesystem::path& file) {
  return nlohmann::json::parse(get_bytes(file));
}

class UserData : public testing::Test {
 protected:
  UserData() {
    put_photos(folder_ / "photos", 20);
    put_photos(folder_ / "more_photos", 6, 2);
    put_flats(folder_ / "flats.csv", 300);
    put_flats(folder_ / "more_flats.csv", 40, 2);
    put_idx(folder_.path(), 100);
    photos_ = folder_ / "photos";
    more_photos_ = folder_ / "more_photos";
    flats_ = folder_ / "flats.csv";
    more_flats_ = folder_ / "more_flats.csv";
    idx_ = folder_ / "train-images-idx3-ubyte";
  }

  // Figures of a training that must succeed; what it says goes to `said_`.
  nlohmann::json figures(const Words& words, const Words& more = {}) {
    Words all = words;
    all.insert(all.end(), {"--threads", "1", "--json", folder_ / "figures.json"});
    const auto result = tutti("train", all, more);
    said_ = result.out;
    EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(all) << result.err << result.out;
    return result.exit_code == 0 ? first_line(folder_ / "figures.json") : nlohmann::json{};
  }

  const TempFolder folder_;
  std::string photos_, more_photos_, flats_, more_flats_, idx_;
  std::string said_;
};

}  // namespace tutti::test
