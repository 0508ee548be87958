// Losses and metrics of batches on a device, against those that the CPU adds up of the same
// outputs, in whatever order the device works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/late_totals.h"

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

using detail::Goals;
using detail::Tensors;
using detail::Totals;
using ::testing::HasSubstr;

class LateTotals : public test::FakeCudaTest {
 protected:
  static at::Device gpu() { return {at::kCUDA, 0}; }
};

Strategy on_gpu() {
  return Strategy({.kind = "one_device", .threads_per_replica = 1, .device = "cuda:0", .seed = 7});
}

/// An output between 0 and 1 and a target that every loss takes, of `rows` samples.
std::pair<at::Tensor, at::Tensor> a_pair(const std::string& loss, int64_t rows) {
  const auto ramp = torch::arange(rows * 4, at::kFloat).view({rows, 4});
  const at::Tensor output = torch::sin(ramp).abs() * 0.9 + 0.05;
  if (loss == "sparse_categorical_crossentropy") return {output, torch::arange(rows).remainder(4)};
  return {output, torch::one_hot(torch::arange(rows).remainder(4), 4).to(at::kFloat)};
}

/// What the CPU's code adds up of losses sample by sample.
double oracle(const Loss& loss, const at::Tensor& output, const at::Tensor& target,
              const at::Tensor& weights) {
  const auto each = loss.kernel().per_sample(output, target).to(at::kDouble);
  double sum = 0;
  for (int64_t row = 0; row < each.numel(); ++row)
    sum +=
        (weights.defined() ? double{weights[row].item<float>()} : 1.0) * each[row].item<double>();
  return sum;
}

TEST_F(LateTotals, AreThoseOfTheCpuForEveryLoss) {
  for (const std::string& name : losses::loss_names())
    for (const bool weighted : {false, true}) {
      if (name == "ctc") continue;  // it waits, and the fake has none of its operators
      test::in_all_orders(3, [&] {
        SCOPED_TRACE(name);
        const Goals goals{{.name = "", .loss = losses::loss_by_name(name), .metrics = {}}};
        Totals totals;
        double expected = 0;
        Strategy strategy = on_gpu();
        strategy.run([&](ReplicaContext& replica) {
          LateReads late(replica.queue());
          const auto before = test::fake_cuda::counts();
          for (int64_t batch = 1; batch <= 3; ++batch) {
            const auto [output, target] = a_pair(name, 5 * batch);
            Tensors columns{output, target};
            if (weighted) columns.push_back(torch::arange(5 * batch, at::kFloat) / 7);
            const auto host = detail::host_batch(columns, 1, goals);
            expected += oracle(goals[0].loss, output, target, host->parts.weights);
            const auto there = detail::device_batch(replica, host->parts);
            const Tensors outputs{there->parts.inputs[0].detach().requires_grad_()};
            const auto losses = detail::losses_on_device(goals, outputs, host->parts, there->parts);
            const auto loss = detail::scaled_loss(goals, losses, there->parts, 0.25);
            loss.backward();
            detail::read_later(late, goals, host, losses, outputs, {},
                               [&](const auto& figures) { figures.add_to(totals, goals); });
            late.poll(Deadline(replica.time_limit()));
          }
          late.settle(Deadline(replica.time_limit()));
          EXPECT_EQ((test::fake_cuda::counts() - before).host_waits, 0U);
        });
        EXPECT_EQ(totals.outputs[0].loss, expected);
        EXPECT_EQ(totals.samples, 30);
      });
    }
}

TEST_F(LateTotals, MetricsAreThoseOfTheCpu) {
  const Goals goals{
      {.name = "",
       .loss = losses::sparse_categorical_crossentropy(),
       .metrics = {metrics::accuracy(), metrics::confusion_matrix(), metrics::added("given")}}};
  test::in_all_orders(5, [&] {
    Totals totals;
    Totals expected;
    Strategy strategy = on_gpu();
    strategy.run([&](ReplicaContext& replica) {
      LateReads late(replica.queue());
      for (int64_t batch = 1; batch <= 3; ++batch) {
        const auto [output, target] = a_pair("sparse_categorical_crossentropy", 3 * batch);
        const auto host = detail::host_batch({output, target}, 1, goals);
        const at::Tensor given = output.select(1, 0).to(at::kDouble);
        detail::BatchParts parts = host->parts;
        parts.added = {{"given", given}};
        expected.add_metrics(goals, {output}, parts);
        const auto there = detail::device_batch(replica, host->parts);
        const Tensors outputs{there->parts.inputs[0]};
        detail::read_later(late, goals, host,
                           detail::losses_on_device(goals, outputs, host->parts, there->parts),
                           outputs, {{"given", given.to(gpu())}},
                           [&](const auto& figures) { figures.add_to(totals, goals); });
      }
      late.settle(Deadline(replica.time_limit()));
    });
    EXPECT_EQ(totals.outputs[0].states, expected.outputs[0].states);
    EXPECT_EQ(totals.outputs[0].width, 4);
  });
}

TEST_F(LateTotals, ClassWeightsOfALossWaitForNobody) {
  const Loss loss = losses::sparse_categorical_crossentropy({.class_weights = {1, 2, 0, 0.5}});
  const auto [output, target] = a_pair("sparse_categorical_crossentropy", 9);
  const auto expected = loss.kernel().per_sample(output, target);
  const at::Tensor output_there = output.to(gpu()), target_there = target.to(gpu());
  const auto before = test::fake_cuda::counts();
  const at::Tensor got = loss.kernel().per_sample(output_there, target_there);
  EXPECT_EQ((test::fake_cuda::counts() - before).host_waits, 0U);
  EXPECT_TRUE(got.cpu().equal(expected));
}

// On a device it would end the process.
TEST_F(LateTotals, ALabelOutOfRangeIsFoundOnTheHost) {
  const Goals goals{{.name = "", .loss = losses::sparse_categorical_crossentropy(), .metrics = {}}};
  Strategy strategy = on_gpu();
  const auto message = test::message_of<DataError>([&] {
    strategy.run([&](ReplicaContext& replica) {
      auto [output, target] = a_pair("sparse_categorical_crossentropy", 6);
      target[4] = 9;
      const auto host = detail::host_batch({output, target}, 1, goals);
      const auto there = detail::device_batch(replica, host->parts);
      detail::losses_on_device(goals, {there->parts.inputs[0]}, host->parts, there->parts);
    });
  });
  EXPECT_THAT(message, HasSubstr("row 4 of the batch has label 9"));
}

TEST_F(LateTotals, AreNotFiniteWhereOneLossIsNot) {
  const auto says = [&](const at::Tensor& one, const at::Tensor& other) {
    const at::Tensor bad = detail::any_not_finite({one.to(gpu()), other.to(gpu())});
    return bad.cpu().item<bool>();
  };
  const auto large = torch::full({4}, 3e38F);  // their sum is no float
  EXPECT_FALSE(says(torch::ones({3}), large));
  EXPECT_FALSE(says(torch::empty({0}), -large));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    at::Tensor one = torch::zeros({5});
    one[3] = bad;
    EXPECT_TRUE(says(one, large)) << bad;
    EXPECT_TRUE(says(large, one)) << bad;
  }
  EXPECT_TRUE(says(torch::tensor({INFINITY, -INFINITY}), large));
}

}  // namespace
}  // namespace tutti
