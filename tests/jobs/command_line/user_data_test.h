/// `tutti train`, `evaluate` and `predict` on data of a user's own.
#pragma once

#include <filesystem>
#include <string>

#include "tests/jobs/command_line/user_data.h"
#include "tests/jobs/program.h"

namespace tutti::test {

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
  json figures(const Words& words, const Words& more = {}) {
    const Words all =
        Words{"train"} + words + Words{"--threads", "1", "--json", folder_ / "figures.json"} + more;
    const auto result = tutti(all);
    said_ = result.out;
    EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(all) << result.err << result.out;
    return result.exit_code == 0 ? json_in(folder_ / "figures.json") : json{};
  }

  const TempFolder folder_;
  std::string photos_, more_photos_, flats_, more_flats_, idx_;
  std::string said_;
};

}  // namespace tutti::test
