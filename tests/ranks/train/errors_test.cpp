// What goes wrong on one worker ends all of them, in the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/train/model.h"

#include "tests/support/run_workers.h"

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Samples {
  std::vector<float> x = std::vector<float>(24 * 4, 0.5F);
  std::vector<int64_t> y = std::vector<int64_t>(24, 1);
  data::Dataset batched() const {
    return data::from_arrays({data::array_of(x, {24, 4}), data::array_of(y, {24})}).batch(6);
  }
};

Strategy workers_strategy(int replicas) {
  return Strategy({.kind = "multi_worker", .replicas = replicas, .threads_per_replica = 1});
}

Model error_model(const Strategy& strategy) {
  Model model(strategy, [] { return torch::nn::Linear(4, 3); });
  model.compile({.optimizer = optim::sgd(), .loss = losses::sparse_categorical_crossentropy()});
  return model;
}

template <class Action>
void mark_error(const test::Rank& rank, Action&& action) {
  try {
    action();
    rank.mark("no error");
  } catch (const Error& error) {
    rank.mark(std::string("error: ") + error.what());
  }
}

// Batches of 6 over 4 replicas on 2 workers: sample 10 is the second batch's fifth, replica 2's.
RANK_PROGRAM(one_has_a_bad_input) {
  Samples samples;
  samples.x[10 * 4 + 2] = NAN;
  Model model = error_model(workers_strategy(4));
  mark_error(rank, [&] { model.fit(samples.batched(), {.verbose = 0}); });
}

TEST(WorkersErrors, AllNameTheFirstTensorThatIsNotFinite) {
  const auto out = test::run_workers(2, "one_has_a_bad_input");
  EXPECT_THAT(test::lines_after(out.log, "error: "),
              testing::AllOf(SizeIs(2), Each(HasSubstr("epoch 1 of 1, step 2 of 4; replica 2: "
                                                       "input of sample 10 of the dataset has "
                                                       "nan at element 2"))))
      << out.log;
}

}  // namespace
}  // namespace tutti
