// What a training with servers writes down of itself.
#include <map>

#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

TEST(ServedTrace, EveryWorkerWritesWhatItDid) {
  const TempFolder folder;
  constexpr int64_t kSteps = 6;
  const auto result = run_command(
      train_served({"--servers", "1", "--replicas", "2", "--max-steps", std::to_string(kSteps),
                    "--epochs", "1", "--trace", folder / "run.json"}),
      {}, Millis{60'000});
  ASSERT_EQ(result.exit_code, 0) << last_part(result.err);
  for (const auto& [name, worker] : {std::pair{"run.json", 0}, {"run.1.json", 1}}) {
    const json trace = json_in(folder / name);
    EXPECT_EQ(trace.at("leftOut"), 0);
    // The one piece of this model is carried by worker 0.
    const std::string hands_in = worker == 0 ? "ps.push" : "host.push";
    std::map<std::string, int64_t> times;
    std::map<int64_t, double> pushed;  // by step
    for (const json& event : trace.at("traceEvents")) {
      ++times[event.at("name")];
      EXPECT_EQ(event.at("pid"), worker);
      const json& arguments = event.at("args");
      if (event.at("name") == hands_in) pushed[arguments.at("step")] = event.at("ts");
      if (event.at("name") != "host.arrived") continue;
      const int64_t step = arguments.at("step");
      ASSERT_TRUE(pushed.contains(step - 1)) << name << ": parameters before their gradients";
      EXPECT_LT(pushed[step - 1], event.at("ts")) << name << ", step " << step;
    }
    for (const std::string each_step :
         {"train.step", "train.forward", "sync.backward", "sync.exchange", hands_in.c_str(),
          "sync.fill", "host.arrived"})
      EXPECT_EQ(times[each_step], kSteps) << name << ": " << each_step;
    EXPECT_EQ(times["ps.arrived"], worker == 0 ? kSteps + 1 : 1) << name;
  }
}

TEST(ServedTrace, OfAnyProgramByTheEnvironment) {
  const TempFolder folder;
  const std::string file = folder / "own.json";
  const auto result = run_command(
      train_mlp({"--strategy", "mirrored", "--replicas", "1", "--max-steps", "2", "--epochs", "1"}),
      {"TUTTI_TRACE=" + file}, Millis{60'000});
  ASSERT_EQ(result.exit_code, 0) << last_part(result.err);
  EXPECT_NE(get_bytes(file).find("train.forward"), std::string::npos);
}

TEST(ServedTrace, AFileThatCannotBeMadeIsWrongUsage) {
  const auto result = run_command(train_mlp({"--trace", "/no/such/folder/run.json"}), {});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--trace"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("/no/such/folder/run.json"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace tutti::test
