// Reductions over hosts: the bits of the parts in turn, and who fails is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tutti/cluster/join/join.h"
#include "tutti/comm/engine/debug_mode.h"
#include "tutti/sync/replicated/whole_rules.h"
#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/support/hosts.h"
#include "tests/support/run_workers.h"
#include "tests/support/small_training.h"
#include "tests/support/temp_folder.h"
#include "tests/support/uneven.h"

namespace tutti {
namespace {

OptimizerChoice torch_sgd() {
  return [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

std::string weights_of(StrategyOptions options, const OptimizerChoice& optimizer) {
  options.threads_per_replica = 1;
  options.seed = 7;
  const Strategy strategy(options);
  Model model(strategy, [] { return test::FeaturesNet(); });
  model.compile({.optimizer = optimizer, .loss = losses::sparse_categorical_crossentropy()});
  model.fit(test::NumberedSamples(34).plain().shuffle().batch(8), {.epochs = 2, .verbose = 0});
  return model.weights_sha256();
}

/// Whatever does not add in the fused step, a word each.
std::string reductions_story(const std::string& kind, int replicas, const std::string& shape = "") {
  const OptimizerChoice adam = optim::adam({.learning_rate = 0.05});
  const StrategyOptions base{.kind = kind, .replicas = replicas, .reduction_shape = shape};
  std::string story;
  for (const char* reduction : {"all_reduce", "to_one_device", "hierarchical_copy"}) {
    StrategyOptions options = base;
    options.reduction = reduction;
    story += weights_of(options, adam) + " ";
  }
  for (const auto how : {Compression::Kind::bfloat16, Compression::Kind::top_k}) {
    StrategyOptions options = base;
    options.compression = {.kind = how, .ratio = 0.3, .min_elements = 1};
    story += weights_of(options, adam) + " ";
  }
  for (const OptimizerChoice& whole :
       {OptimizerChoice(optim::muon({.learning_rate = 0.02})), OptimizerChoice(optim::adafactor())})
    story += weights_of(base, whole) + " ";
  return story + weights_of(base, torch_sgd());
}

using Story = std::string (*)(const std::string& kind, int replicas, const std::string& shape);

/// The workers of some hosts tell, in rank program `program` and behind `mark`, what the parts in
/// turn do.
void expect_over(const test::TestHosts& hosts, int workers, const std::string& program,
                 const std::string& mark, const Story& story) {
  const int all = hosts.count() * workers;
  const std::string shape = fmt::format("{}x{}", hosts.count(), workers);
  const std::string expected = story("one_device", all, shape);
  for (const auto& node : test::run_nodes(hosts, workers, program, {std::to_string(all)})) {
    ASSERT_EQ(node.exit_code, 0) << node.log;
    EXPECT_THAT(test::lines_after(node.log, mark), AllOf(SizeIs(workers), Each(expected)));
  }
}

RANK_PROGRAM(tell_of_reductions) {
  rank.mark("reductions: " + reductions_story("multi_worker", std::stoi(rank.arguments[0])));
}

TEST(ReductionsOverTwoHosts, HaveTheBitsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  for (const int workers : {1, 2})  // of a host: tcp alone, and shared memory inside
    expect_over(test::TestHosts(2), workers, "tell_of_reductions",
                "reductions: ", reductions_story);
}

// ---- the fused step, whose sums go while backward and the next forward pass go on ----

/// Of several pieces a replica. In backward it stops before each layer for as long as chance has
/// it; one parameter is used by some replicas alone; in one forward pass, where told, its loss is
/// bad.
struct LateNetImpl : torch::nn::Module {
  LateNetImpl(unsigned seed, int bad_pass) : random(seed), good(bad_pass - 1) {
    const std::vector<int64_t> wide{4, 700, 400, 900, 300, 3};
    for (size_t i = 0; i + 1 < wide.size(); ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(wide[i], wide[i + 1])));
    unused = register_parameter("unused", torch::ones({3'000}));
    sometimes = register_parameter("sometimes", torch::full({2'000}, 1.01));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
  }

  at::Tensor forward(at::Tensor x) {
    const auto first_sample = x[0][0].item<int64_t>();
    x = x.narrow(1, 1, 4);
    for (size_t i = 0; i < layers.size(); ++i) {
      if (before_use) before_use(i);
      x = torch::tanh(layers[i](x));
      if (x.requires_grad())
        x.register_hook([this, i](const at::Tensor&) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2'000));
          if (before_layer) before_layer(i);
        });
    }
    if (first_sample % 3 == 0) x = x * sometimes.mean();
    return dropout(good-- == 0 ? x / 0 : x);
  }

  std::vector<torch::nn::Linear> layers;
  at::Tensor unused, sometimes;
  torch::nn::Dropout dropout{nullptr};
  std::minstd_rand random;
  int good;
  std::function<void(size_t)> before_use;    // of a layer, in a forward pass
  std::function<void(size_t)> before_layer;  // of a backward pass
};
TORCH_MODULE(LateNet);

struct Case {
  OptimizerChoice optimizer = optim::adam({.learning_rate = 1e-3});
  FitOptions fit{};
  Measures measures{};
  Precision precision = Precision::float32;
  int bad_pass = 0;
};

std::string late_weights_of(StrategyOptions options, const Case& told) {
  options.threads_per_replica = 1;
  options.seed = 7;
  const Strategy strategy(options);
  std::random_device chance;
  Model model(strategy, [&] { return LateNet(chance(), told.bad_pass); });
  model.compile({.optimizer = told.optimizer,
                 .loss = losses::sparse_categorical_crossentropy(),
                 .precision = told.precision,
                 .measures = told.measures});
  FitOptions fit = told.fit;
  fit.epochs = 2;
  fit.verbose = 0;
  model.fit(test::NumberedSamples(34).plain().shuffle().batch(8), fit);
  return model.weights_sha256();
}

/// Every way of a step that sends its sums in another way, a word each.
std::string hidden_story(const std::string& kind, int replicas, const std::string& shape = "") {
  const std::vector<Case> cases{
      {},
      {.optimizer = optim::Recipe(optim::sgd({.learning_rate = 0.01}), {.global_norm = 0.5})},
      {.optimizer = optim::lamb({.learning_rate = 1e-3})},
      {.fit = {.accumulate = 2}},
      {.measures = {.noise_scale = true}},
      {.precision = Precision::bfloat16},
      {.optimizer = torch_sgd()},  // every replica updates its own
      {.fit = {.on_nan = OnNan::end}, .bad_pass = 7}};
  std::string story;
  for (const Case& told : cases)
    story +=
        late_weights_of({.kind = kind, .replicas = replicas, .reduction_shape = shape}, told) + " ";
  return story;
}

RANK_PROGRAM(tell_of_hidden_sums) {
  rank.mark("hidden: " + hidden_story("multi_worker", std::stoi(rank.arguments[0])));
}

class HiddenSums : public testing::TestWithParam<int> {};

TEST_P(HiddenSums, HaveTheBitsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  expect_over(test::TestHosts(2), GetParam(), "tell_of_hidden_sums", "hidden: ", hidden_story);
}

TEST(HiddenSumsOfThreeHosts, HaveTheBitsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  expect_over(test::TestHosts(3), 1, "tell_of_hidden_sums", "hidden: ", hidden_story);
}

std::string late_story(const std::string& kind, int replicas, const std::string& shape = "") {
  return late_weights_of({.kind = kind, .replicas = replicas, .reduction_shape = shape},
                         {.fit = {.validation = test::NumberedSamples(34).plain().batch(8)}});
}

RANK_PROGRAM(tell_of_late_sums) {
  rank.mark("late: " + late_story("multi_worker", std::stoi(rank.arguments[0])));
}

// A forward pass is long done when they would be there: it waits for each.
TEST_P(HiddenSums, AreWaitedForWhereTheWireIsSlow) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  if (!hosts.slow_down(300)) GTEST_SKIP() << "no tbf on this machine";
  expect_over(hosts, GetParam(), "tell_of_late_sums", "late: ", late_story);
}

INSTANTIATE_TEST_SUITE_P(WorkersOfAHost, HiddenSums, testing::Values(1, 2),
                         testing::PrintToStringParamName());

// ---- a worker fails before each layer of a pass in turn: of a backward pass, with the pieces of
// the layers behind it on their way; of a forward pass, with what the last step has left to it ----

constexpr int kLayers = 5;
constexpr int kSteps = 9;
constexpr int kStep = 6;  // of the fault: the order of pieces has been agreed on

void fail(const test::Rank& rank) {
  const std::string& way = rank.arguments.at(0);
  if (way == "kill") std::raise(SIGKILL);
  if (way == "stop") std::raise(SIGSTOP);
  if (way == "throw") throw DataError("row 17 is damaged");
  rank.mark("cut me off");
  const Deadline deadline(Millis{10'000});
  while (!std::filesystem::exists(rank.arguments.at(3)) && !deadline.passed())
    std::this_thread::yield();
}

/// Rank 1 fails in the way of arguments[0] before layer arguments[1] of a pass (arguments[4]);
/// waits give up after arguments[2] ms. One that is cut off goes on once file arguments[3] is
/// there.
RANK_PROGRAM(fail_in_a_pass) {
  const size_t layer = std::stoul(rank.arguments.at(1));
  try {
    int step = 0, own = -1;
    const int failing = std::stoi(rank.arguments.at(6));
    Strategy strategy({.kind = "multi_worker",
                       .replicas = std::stoi(rank.arguments.at(5)),
                       .threads_per_replica = 1,
                       .time_limit = Millis(std::stoi(rank.arguments.at(2)))});
    const Replicated<LateNet> net(strategy, [&] {
      LateNet made(7, 0);
      auto& before = rank.arguments.at(4) == "forward" ? made->before_use : made->before_layer;
      before = [&](size_t at) {
        if (own == failing && step == kStep && at == layer) fail(rank);
      };
      return made;
    });
    Optimizer optimizer(net, optim::adam({.learning_rate = 1e-3}));
    strategy.run([&](ReplicaContext& replica) {
      own = replica.rank();
      if (!optimizer.updater().begin(replica.local_rank(), Overlap::on)->sends())
        throw DataError("gradients are not sent while backward goes on");
      for (step = 0; step < kSteps; ++step)
        optimizer.minimize(replica, net.local(replica)->forward(torch::ones({4, 5})).sum());
    });
  } catch (const std::exception& error) {
    std::printf("survivor: %s\n", error.what());
    std::fflush(stdout);
    report_failure(error);
    throw;
  }
}

class FaultsInHiddenSums : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  /// `workers` of a host; the links have so many Mbit/s, or what they can.
  void expect_named(const std::string& pass, int layer, int workers, int mbit) const {
    const std::string way = GetParam();
    SCOPED_TRACE(fmt::format("{} pass, before layer {}", pass, layer));
    const test::TestHosts hosts(2);
    if (mbit > 0 && !hosts.slow_down(mbit)) GTEST_SKIP() << "no tbf on this machine";
    test::NodesOptions options{.silence = Millis{3'000}, .limit = Millis{30'000}};
    const test::TempFolder folder;
    const std::string done = folder / "cut";
    const int failing = way == "cut" ? workers : 1;  // of the host that is cut off
    if (way == "cut")
      options.kill = {.rank = 1, .after = "cut me off", .signal = 0, .then = [&] {
                        hosts.cut(1);
                        std::ofstream(done) << "done";
                      }};
    const char* limit = way == "stop" || way == "cut" ? "1500" : "20000";
    const auto nodes = test::run_nodes(hosts, workers, "fail_in_a_pass",
                                       {way, std::to_string(layer), limit, done, pass,
                                        std::to_string(2 * workers), std::to_string(failing)},
                                       options);
    for (const RankOutcome& node : nodes) {
      EXPECT_FALSE(node.timed_out) << node.log;
      EXPECT_NE(node.exit_code, 0) << node.log;
    }
    // Of a host that is cut off any may be missed first.
    const std::string name =
        way == "cut" ? fmt::format("rank [{}-{}]", failing, 2 * workers - 1) : "rank 1";
    const std::string cause = way == "kill"    ? "rank 1 was killed by SIGKILL"
                              : way == "throw" ? "row 17 is damaged"
                                               : name;
    EXPECT_THAT(nodes[0].log, testing::ContainsRegex(cause));
    const auto names = testing::ContainsRegex(name + "|row 17 is damaged");
    const auto survivors = test::lines_after(nodes[0].log, "] survivor: ");
    EXPECT_THAT(survivors, AllOf(Not(IsEmpty()), Each(names))) << nodes[0].log;
    EXPECT_THAT(hosts.left_running(Millis{5'000}), IsEmpty());
  }
};

TEST_P(FaultsInHiddenSums, AreNamedByEverybodyBeforeEachLayer) {
  for (int layer = 0; layer < kLayers; ++layer) expect_named("backward", layer, 1, 0);
}

TEST_P(FaultsInHiddenSums, AreNamedInTheForwardPassThatTheyAreLeftTo) {
  for (const int layer : {0, 2}) expect_named("forward", layer, 2, 100);
}

INSTANTIATE_TEST_SUITE_P(Ways, FaultsInHiddenSums, testing::Values("kill", "throw", "stop", "cut"),
                         [](const auto& info) { return std::string(info.param); });

/// In debug mode parameters that are on their way are NaN for who reads them without waiting, and
/// in the end those of the parts in turn.
RANK_PROGRAM(read_too_early) {
  set_debug_mode(true);
  bool found = false;
  Strategy strategy({.kind = "multi_worker", .replicas = 2, .threads_per_replica = 1, .seed = 7});
  const Replicated<LateNet> net(strategy, [&] { return LateNet(7, 0); });
  Optimizer optimizer(net, optim::adam({.learning_rate = 1e-3}));
  strategy.run([&](ReplicaContext& replica) {
    for (int step = 0; step < 9; ++step) {
      LateNet model = net.local(replica);
      for (const at::Tensor& parameter : model->parameters()) {
        const auto* values = static_cast<const float*>(parameter.const_data_ptr());
        found |= std::any_of(values, values + parameter.numel(), [](float x) { return x != x; });
        require_ready(parameter);
        if (std::any_of(values, values + parameter.numel(), [](float x) { return x != x; }))
          throw DataError("require_ready() has returned before all was there");
      }
      optimizer.minimize(replica, model->forward(torch::ones({4, 5})).sum());
    }
  });
  rank.mark(found ? "found" : "nothing");
}

TEST(HiddenSumsInDebugMode, AreNanForWhoReadsThemTooEarly) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  if (!hosts.slow_down(100)) GTEST_SKIP() << "no tbf on this machine";
  for (const auto& node : test::run_nodes(hosts, 1, "read_too_early", {})) {
    ASSERT_EQ(node.exit_code, 0) << node.log;
    EXPECT_THAT(node.log, HasSubstr("found"));
  }
}

// ---- two at once ----

/// Two models that know nothing of each other, both in one run: what the first one's step has left
/// is on its way when the second one's begins, over the same wire.
std::string two_story(const std::string& kind, int replicas, const std::string& shape = "") {
  Strategy strategy({.kind = kind,
                     .replicas = replicas,
                     .reduction_shape = shape,
                     .threads_per_replica = 1,
                     .seed = 7});
  std::random_device chance;
  const Replicated<LateNet> first(strategy, [&] { return LateNet(chance(), 0); });
  const Replicated<LateNet> second(strategy, [&] { return LateNet(chance(), 0); });
  Optimizer of_first(first, optim::adam({.learning_rate = 1e-3}));
  Optimizer of_second(second, optim::sgd({.learning_rate = 0.01}));
  const auto step_of = [&](Optimizer& optimizer, const Replicated<LateNet>& model, int step) {
    return [&, step](ReplicaContext& replica) {
      const auto x = torch::sin(torch::arange(20) + 100 * replica.rank() + step).reshape({4, 5});
      optimizer.minimize(replica, model.local(replica)->forward(x).pow(2).sum());
    };
  };
  const auto all = [&](const auto& make) {
    for (int step = 0; step < 8; ++step) {
      make(step_of(of_first, first, step));
      make(step_of(of_second, second, step));
    }
  };
  if (strategy.world().in_turn())
    all([&](const auto& step) { strategy.run(step); });
  else
    strategy.run([&](ReplicaContext& replica) { all([&](const auto& step) { step(replica); }); });
  std::string story;
  for (const Optimizer* of : {&of_first, &of_second})
    for (const at::Tensor& parameter : of->updater().parameters(0))
      story += test::sha_of({parameter}) + " ";
  return story;
}

RANK_PROGRAM(tell_of_two) {
  rank.mark("two: " + two_story("multi_worker", std::stoi(rank.arguments[0])));
}

TEST_P(HiddenSums, OfTwoOptimizersKeepApart) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  if (!hosts.slow_down(300)) GTEST_SKIP() << "no tbf on this machine";
  expect_over(hosts, GetParam(), "tell_of_two", "two: ", two_story);
}

}  // namespace
}  // namespace tutti
