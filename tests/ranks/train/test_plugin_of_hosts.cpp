// Strategy tpu of several processes, by a plugin that makes one client of them: all of it is as in
// one process with as many devices, but for the order of sums.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "tutti/base/json.h"
#include "tutti/train/model/model.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/plain_arrays.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti::plugin_of_hosts {
namespace {

/// Dropout by the number of a row, statistics of batch norms, which replicas have each their own.
nn::Graph net() {
  const auto input = nn::input({3, 2, 2});
  auto x = nn::relu()(nn::batch_norm2d()(nn::conv2d(4, 1, {.bias = false})(input)));
  return {input, nn::linear(3)(nn::dropout(0.2)(nn::flatten()(x)))};
}

/// What is wrong with sample 45, in the third batch and worker 1's part of it.
enum class Wrong : uint8_t { nothing, nan, label };

data::Dataset unbatched(int64_t count, Wrong wrong = Wrong::nothing) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({count, 12});
  const at::Tensor y = x.slice(1, 0, 3).argmax(1);
  if (wrong == Wrong::nan) x[45][0] = NAN;
  if (wrong == Wrong::label) y[45] = 7;
  return data::from_arrays({plain_array(x.reshape({count, 3, 2, 2})), plain_array(y)});
}

/// In batches of 16; of 49 the last has one row, for one replica.
data::Dataset samples(int64_t count, Wrong wrong = Wrong::nothing) {
  return unbatched(count, wrong).batch(16);
}

Strategy by(const std::string& plugin, int replicas) {
  return Strategy({.kind = "tpu",
                   .replicas = replicas,
                   .threads_per_replica = 1,
                   .time_limit = Millis{20'000},
                   .plugin = plugin,
                   .seed = 5});
}

Model compiled(const Strategy& strategy, const CompileOptions& more = {}) {
  Model model(strategy, net);
  CompileOptions options = more;
  options.optimizer = optim::adam({.learning_rate = 0.02});
  options.loss = losses::sparse_categorical_crossentropy();
  options.metrics = {metrics::accuracy()};
  model.compile(options);
  return model;
}

std::string words_of(const std::vector<double>& numbers) {
  return fmt::format("{:.17g}", fmt::join(numbers, " "));
}

/// What a training, an evaluation and a prediction say, in numbers.
std::vector<double> story(const Strategy& strategy, int64_t steps_per_execution) {
  Model model = compiled(strategy, {.steps_per_execution = steps_per_execution});
  const History history = model.fit(unbatched(49).shuffle().batch(16),
                                    {.epochs = 2, .validation = samples(7), .verbose = 0});
  std::vector<double> numbers;
  for (const auto& row : history.rows) numbers.insert(numbers.end(), row.begin(), row.end() - 2);
  const Scores scores = model.evaluate(samples(33));
  numbers.insert(numbers.end(), {scores.loss, scores.at("accuracy"), double(scores.samples)});
  for (const at::Tensor& outputs :
       {model.predict(samples(19)), model.predict(at::ones({2, 3, 2, 2}))})
    for (const double sum : {outputs.sum().item<double>(), outputs[0][1].item<double>()})
      numbers.push_back(sum);
  for (const auto& parameter : model.modules().module(0)->parameters())
    numbers.push_back(parameter.square().sum().item<double>());
  for (const auto& [name, buffer] : model.modules().merged_buffers())
    numbers.push_back(buffer.to(at::kDouble).sum().item<double>());
  numbers.push_back(static_cast<double>(model.optimizer().version()));
  return numbers;
}

RANK_PROGRAM(tell_story_by_plugin) {
  const Strategy strategy = by(rank.arguments[0], std::stoi(rank.arguments[1]));
  rank.mark("story " + words_of(story(strategy, std::stoll(rank.arguments[2]))));
}

RANK_PROGRAM(resume_by_plugin) {
  const Strategy strategy = by(rank.arguments[0], 2);
  Model straight = compiled(strategy);
  straight.fit(samples(49), {.epochs = 3, .verbose = 0});
  FitOptions options{.epochs = 3, .verbose = 0};
  options.checkpoints = {.folder = rank.arguments[1], .every_steps = 3};
  options.max_steps = 7;
  compiled(strategy).fit(samples(49), options);
  options.max_steps = 0;
  options.checkpoints.resume = true;
  Model resumed = compiled(strategy);
  const int64_t steps = resumed.fit(samples(49), options).steps;
  double apart = 0;
  const auto expected = straight.modules().module(0)->parameters();
  for (size_t i = 0; i < expected.size(); ++i)
    apart = std::max(
        apart,
        (resumed.modules().module(0)->parameters()[i] - expected[i]).abs().max().item<double>());
  rank.mark(fmt::format("resumed {} {}, weights {}", steps, apart < 1e-6 ? "near" : "far",
                        resumed.weights_sha256()));
}

RANK_PROGRAM(meet_nan_by_plugin) {
  const Strategy strategy = by(rank.arguments[0], 2);
  Model model = compiled(strategy);
  try {
    model.fit(samples(48, Wrong::nan), {.epochs = 2, .verbose = 0});
  } catch (const Error& error) {
    rank.mark(std::string("said ") + error.what());
  }
  rank.mark(fmt::format("updates {}", model.optimizer().version()));
}

/// Worker 1 alone sees that a label is wrong.
RANK_PROGRAM(meet_a_wrong_label_by_plugin) {
  const Strategy strategy = by(rank.arguments[0], 2);
  compiled(strategy).fit(samples(48, Wrong::label), {.epochs = 2, .verbose = 0});
}

RANK_PROGRAM(end_by_plugin) {
  const Strategy strategy = by(rank.arguments[0], 2);
  Model model = compiled(strategy);
  const auto stops = callbacks::lambda("stops", {.on_step_end = [](Training& training) {
                                         if (training.step() == 5) training.stop("enough");
                                       }});
  const History history = model.fit(samples(48), {.epochs = 9, .callbacks = {stops}, .verbose = 0});
  rank.mark(
      fmt::format("ended after {} of version {}", history.steps, model.optimizer().version()));
}

/// Worker 1 is gone in the middle of it.
RANK_PROGRAM(lose_one_by_plugin) {
  const Strategy strategy = by(rank.arguments[0], 2);
  Model model = compiled(strategy);
  model.fit(samples(48), {.verbose = 0});
  std::thread([dies = strategy.world().first_rank == 1] {
    std::this_thread::sleep_for(Millis{500});
    if (dies) std::raise(SIGKILL);
  }).detach();
  model.fit(samples(48), {.epochs = 100'000, .verbose = 0});
}

RANK_PROGRAM(begin_by_plugin) {
  const Strategy strategy = by(rank.arguments[static_cast<size_t>(rank.rank)], 2);
  rank.mark("began");
}

class TpuProcesses : public test::Evaluated {
 protected:
  void SetUp() override {
    Evaluated::SetUp();
    if (IsSkipped()) return;
    ::setenv("PLUGIN_OF_HOSTS", cpu_plugin().c_str(), 1);
    ::setenv("PLUGIN_OF_HOSTS_FOLDER", folder_.path().c_str(), 1);
  }
  TempFolder folder_;
};

std::vector<double> numbers_in(const std::string& line) {
  std::istringstream words(line);
  std::vector<double> numbers;
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

TEST_F(TpuProcesses, TellTheStoryOfOne) {
  for (const auto& [replicas, steps] : {std::pair{2, 1}, std::pair{4, 2}}) {
    const auto out =
        run_workers(2, "tell_story_by_plugin",
                    {TUTTI_PLUGIN_OF_HOSTS, std::to_string(replicas), std::to_string(steps)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    const auto lines = lines_after(out.log, "story ");
    ASSERT_THAT(lines, SizeIs(2)) << out.log;
    EXPECT_EQ(lines[0], lines[1]);
    const auto got = numbers_in(lines[0]), expected = story(by(cpu_plugin(), replicas), steps);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], 1e-6 * std::max(1.0, std::abs(expected[i])))
          << "number " << i << " of " << replicas << " replicas";
  }
}

TEST_F(TpuProcesses, GoOnFromTheirCheckpoint) {
  const auto out = run_workers(2, "resume_by_plugin", {TUTTI_PLUGIN_OF_HOSTS, folder_ / "run"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto lines = lines_after(out.log, "resumed 12 near, weights ");
  ASSERT_THAT(lines, SizeIs(2)) << out.log;
  EXPECT_EQ(lines[0], lines[1]);
}

TEST_F(TpuProcesses, AllSayWhichSampleIsNotFinite) {
  const auto out = run_workers(2, "meet_nan_by_plugin", {TUTTI_PLUGIN_OF_HOSTS});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(lines_after(out.log, "said "),
              AllOf(SizeIs(2), Each(AllOf(HasSubstr("step 3 of 3"), HasSubstr("sample 45")))))
      << out.log;
  EXPECT_THAT(lines_after(out.log, "updates "), AllOf(SizeIs(2), Each("2"))) << out.log;
}

TEST_F(TpuProcesses, AnErrorOfOneEndsTheOthersBeforeTheirNextStep) {
  const auto out = run_workers(2, "meet_a_wrong_label_by_plugin", {TUTTI_PLUGIN_OF_HOSTS}, {},
                               /*end_on_failure=*/false);
  EXPECT_THAT(lines_after(out.log, "[1] error: "), ElementsAre(HasSubstr("label 7"))) << out.log;
  EXPECT_THAT(out.log, ContainsRegex("\\[0\\].*replica 1 failed: .*label 7")) << out.log;
}

TEST_F(TpuProcesses, EndWhereTheChiefsCallbackSays) {
  const auto out = run_workers(2, "end_by_plugin", {TUTTI_PLUGIN_OF_HOSTS});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(lines_after(out.log, "ended after "), AllOf(SizeIs(2), Each("5 of version 5")))
      << out.log;
}

TEST_F(TpuProcesses, ALostOneIsNamed) {
  const auto out = run_workers(2, "lose_one_by_plugin", {TUTTI_PLUGIN_OF_HOSTS}, {},
                               /*end_on_failure=*/false);
  EXPECT_NE(out.exit_code, 0);
  EXPECT_THAT(lines_after(out.log, "[0] error: "), ElementsAre(HasSubstr("rank 1"))) << out.log;
}

TEST_F(TpuProcesses, APluginOfOneProcessIsRefusedByAll) {
  const auto out = run_workers(2, "begin_by_plugin", {cpu_plugin(), cpu_plugin()}, {},
                               /*end_on_failure=*/false);
  EXPECT_THAT(out.log, AllOf(HasSubstr("got 1 devices of process 0, expected devices of 2 "
                                       "processes"),
                             HasSubstr("worker 0 of 2"), HasSubstr("worker 1 of 2"),
                             Not(HasSubstr("began"))))
      << out.log;
}

TEST_F(TpuProcesses, AnotherPluginIsNamedBeforeOneIsOpened) {
  const auto out = run_workers(2, "begin_by_plugin", {TUTTI_PLUGIN_OF_HOSTS, cpu_plugin()});
  EXPECT_THAT(out.log, AllOf(HasSubstr("worker 1 was asked for something else"),
                             HasSubstr("plugin: "), Not(HasSubstr("began"))))
      << out.log;
}

TEST_F(TpuProcesses, HostsThatAreNotTheJobsWorkersAreNamed) {
  ::setenv("TPU_WORKER_HOSTNAMES", "a,b", 1);
  ::setenv("TPU_WORKER_ID", "0", 1);  // of both
  const auto out =
      run_workers(2, "begin_by_plugin", {TUTTI_PLUGIN_OF_HOSTS, TUTTI_PLUGIN_OF_HOSTS});
  ::unsetenv("TPU_WORKER_HOSTNAMES");
  ::unsetenv("TPU_WORKER_ID");
  EXPECT_THAT(out.log, AllOf(HasSubstr("say host 0 of 2, tutti run says worker 1 of 2"),
                             Not(HasSubstr("began"))))
      << out.log;
}

TEST_F(TpuProcesses, TrainDoodlesByTheCommandLine) {
  const auto train = [&](const Words& launcher, const std::string& plugin) {
    const std::string file = folder_ / "figures.json";
    const auto result = run_command(launcher + Words{TUTTI_PROGRAM,
                                                     "train",
                                                     "mlp",
                                                     "--data",
                                                     TUTTI_SOURCE_DIR "/examples/data/quickdraw",
                                                     "--strategy",
                                                     "tpu",
                                                     "--plugin",
                                                     plugin,
                                                     "--replicas",
                                                     "2",
                                                     "--batch-size",
                                                     "64",
                                                     "--max-steps",
                                                     "4",
                                                     "--threads",
                                                     "1",
                                                     "--seed",
                                                     "7",
                                                     "--json",
                                                     file});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return parse_json(get_bytes(file));
  };
  const Json two = train({TUTTI_PROGRAM, "run", "-n", "2"}, TUTTI_PLUGIN_OF_HOSTS);
  const Json one = train({}, cpu_plugin());
  EXPECT_NEAR(two["val_loss"].get<double>(), one["val_loss"].get<double>(), 1e-6);
  EXPECT_NEAR(two["train_loss"][0].get<double>(), one["train_loss"][0].get<double>(), 1e-6);
  EXPECT_EQ(two["replicas"], 2);
}

}  // namespace
}  // namespace tutti::plugin_of_hosts
