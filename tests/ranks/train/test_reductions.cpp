// Reductions other than the fused step over hosts: the bits of the parts in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/train/model/model.h"

#include "tests/support/hosts.h"
#include "tests/support/run_workers.h"
#include "tests/support/uneven.h"

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

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
  return story + weights_of(base, torch_sgd());
}

RANK_PROGRAM(tell_of_reductions) {
  rank.mark("reductions: " + reductions_story("multi_worker", std::stoi(rank.arguments[0])));
}

TEST(ReductionsOverTwoHosts, HaveTheBitsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  for (const int workers : {1, 2}) {  // of a host: tcp alone, and shared memory inside
    const test::TestHosts hosts(2);
    const std::string expected =
        reductions_story("one_device", 2 * workers, fmt::format("2x{}", workers));
    for (const auto& node :
         test::run_nodes(hosts, workers, "tell_of_reductions", {std::to_string(2 * workers)})) {
      ASSERT_EQ(node.exit_code, 0) << node.log;
      EXPECT_THAT(test::lines_after(node.log, "reductions: "),
                  AllOf(SizeIs(workers), Each(expected)));
    }
  }
}

}  // namespace
}  // namespace tutti
