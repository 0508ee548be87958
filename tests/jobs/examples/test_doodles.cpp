// Both programs of 14_doodles train the same weights as each other, under every strategy.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "tests/jobs/examples/programs.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

const std::string kProgram = (kPrograms / "tutti").string();
const std::string kExampleData = std::string(TUTTI_SOURCE_DIR) + "/examples/data";

struct Way {
  const char* strategy;
  Words launcher;  ///< of two workers
};

// One device, two threads, two processes, variables in one place, servers.
std::vector<Way> five_ways() {
  return {{"one_device", {}},
          {"mirrored", {}},
          {"central_storage", {}},
          {"multi_worker", {kProgram, "run", "-n", "2"}},
          {"parameter_server", {kProgram, "run", "--servers", "1", "-n", "2"}}};
}

// What a program prints of `words`, run in a folder of its own.
std::string output_of(const std::string& program, const Way& way, const Words& words) {
  const TempFolder folder;
  Words all = Words{"env", "--chdir=" + folder.path().string()} + way.launcher +
              Words{example(program), "--strategy", way.strategy, "--threads", "1"};
  if (way.launcher.empty()) all = all + Words{"--replicas", "2"};
  const auto result = run_command(all + words, {}, Millis{200'000});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

std::string word_after(const std::string& output, const std::string& before) {
  std::smatch found;
  const std::regex pattern(before + " ([0-9a-f.]+)");
  return std::regex_search(output, found, pattern) ? found[1].str() : "none";
}

class Doodles : public testing::TestWithParam<const char*> {};

TEST_P(Doodles, HaveOneShaUnderFiveStrategiesAndBothWays) {
  const std::string network = GetParam();
  // Of strokes an epoch has three steps.
  const Words words = {network, "2", network == "bitmap" ? "2" : "4",
                       network == "bitmap" ? kFewDoodles : kExampleData + "/strokes"};
  std::string sha, map;
  for (const char* program : {"14_doodles", "14_doodles_loop"})
    for (const Way& way : five_ways()) {
      const std::string output = output_of(program, way, words);
      if (sha.empty()) {
        sha = word_after(output, "weights");
        map = word_after(output, "MAP@3");
        EXPECT_EQ(sha.size(), 64U) << output;
        EXPECT_GT(std::atof(map.c_str()), 0) << output;
      }
      EXPECT_EQ(word_after(output, "weights"), sha) << program << ", " << way.strategy;
      EXPECT_EQ(word_after(output, "MAP@3"), map) << program << ", " << way.strategy;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Doodles, testing::Values("bitmap", "stroke"),
                         [](const auto& info) { return std::string(info.param); });

// The loss of a training of two steps is that of their samples: near log 10 in both ways.
TEST(DoodlesExample, SaysTheMeanLossOfTheSamplesSeen) {
  const std::string output = output_of("14_doodles_loop", {"one_device", {}},
                                       {"stroke", "1", "2", kExampleData + "/strokes"});
  EXPECT_NEAR(std::atof(word_after(output, "mean loss").c_str()), std::log(10.0), 0.2) << output;
}

TEST(DoodlesExample, RefusesANetworkThatItHasNot) {
  EXPECT_THAT(run_command({example("14_doodles"), "bitmaps"}),
              Exits(2, Err(HasSubstr("expected bitmap or stroke"))));
  for (const char* epochs : {"-1", "0", "many", "1x", "99999999999999999999"})
    EXPECT_THAT(run_command({example("14_doodles"), "stroke", epochs}),
                Exits(2, Err(HasSubstr("expected a whole number, 1 or more"))))
        << epochs;
  EXPECT_THAT(run_command({example("14_doodles_loop"), "stroke", "1", "-1"}),
              Exits(2, Err(HasSubstr("steps \"-1\""))));
  EXPECT_THAT(run_command({example("14_doodles_loop"), "stroke", "1", "1", "no/such/folder"}),
              Exits(2, Err(HasSubstr("no/such/folder"))));
}

}  // namespace
}  // namespace tutti::test
