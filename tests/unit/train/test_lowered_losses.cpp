#include <torch/torch.h>

#include <set>

#include "tutti/hlo/gradients.h"
#include "tutti/hlo/ops.h"
#include "tutti/train/losses/overlap.h"

#include "tests/support/expect.h"
#include "tests/support/hlo_evaluate.h"
#include "tests/support/plain_arrays.h"

namespace tutti::lowered_losses {
namespace {

struct LossRow {
  std::string words;
  Loss loss;
  at::Tensor output, target;
};

at::Tensor probabilities(std::vector<int64_t> shape) { return at::rand(shape).softmax(-1); }

std::vector<LossRow> loss_rows() {
  using namespace losses;
  torch::manual_seed(5);
  const at::Tensor y = at::randn({6, 5}) * 2, t = at::randn({6, 5}), labels = at::randint(5, {6});
  const at::Tensor one_hot = at::one_hot(labels, 5).to(at::kFloat);
  const at::Tensor sequences = at::randn({3, 4, 5}), of_sequences = at::randint(5, {3, 4});
  const at::Tensor corners = at::cat({at::zeros({2, 5}), y.slice(0, 2)});
  std::vector<LossRow> rows{
      {"labels", sparse_categorical_crossentropy(), y, labels},
      {"labels_in_a_column", sparse_categorical_crossentropy(), y, labels.unsqueeze(1)},
      {"sequences", sparse_categorical_crossentropy(), sequences, of_sequences},
      {"smoothed", sparse_categorical_crossentropy({.label_smoothing = 0.2}), y, labels},
      {"ignored", sparse_categorical_crossentropy({.ignore_label = 2}), sequences, of_sequences},
      {"ignored_minus", sparse_categorical_crossentropy({.ignore_label = -100}), y,
       labels.masked_fill(labels.eq(3), -100)},
      {"weighted", sparse_categorical_crossentropy({.class_weights = {1, 2, 0, 0.5, 3}}), y,
       labels},
      {"probabilities", sparse_categorical_crossentropy({.from_logits = false}),
       probabilities({6, 5}), labels},
      {"one_hot", categorical_crossentropy(), y, one_hot},
      {"one_hot_smoothed", categorical_crossentropy({.label_smoothing = 0.1}), y, one_hot},
      {"one_hot_probabilities", categorical_crossentropy({.from_logits = false}),
       probabilities({6, 5}), one_hot},
      {"binary", binary_crossentropy(), corners, one_hot},
      {"binary_of_integers", binary_crossentropy({.label_smoothing = 0.1}), y.slice(1, 0, 1),
       labels.gt(2).to(at::kLong)},
      {"binary_probabilities", binary_crossentropy({.from_logits = false}), y.sigmoid(), one_hot},
      {"focal", sparse_categorical_crossentropy({.gamma = 2}), y, labels},
      {"focal_ignored", sparse_categorical_crossentropy({.ignore_label = 2, .gamma = 0.5}),
       sequences, of_sequences},
      {"one_hot_focal", categorical_focal_crossentropy(), y, one_hot},
      {"one_hot_focal_alphas",
       categorical_focal_crossentropy({.gamma = 0.5, .alpha = {1, 0.5, 2, 0, 1}}), y, one_hot},
      {"binary_focal", binary_focal_crossentropy(), corners, one_hot},
      {"binary_focal_probabilities",
       binary_focal_crossentropy({.from_logits = false, .gamma = 0.5, .alpha = 0.3}), y.sigmoid(),
       one_hot},
      {"binary_focal_beyond", binary_focal_crossentropy({.from_logits = false, .gamma = 1.5}),
       at::where(y > 0, 1 + 1e-6, -1e-6).to(at::kFloat), one_hot},
      {"dice_of_probabilities", dice({.from_logits = false, .smooth = 1}), y.sigmoid(), one_hot},
      {"dice_of_classes", dice({.softmax = true}), sequences,
       at::one_hot(of_sequences, 5).to(at::kFloat)},
      {"tversky_of_classes", tversky({.softmax = true, .alpha = 0.3, .beta = 0.7}), sequences,
       at::one_hot(of_sequences, 5).to(at::kFloat)},
      {"huber_far", huber({.delta = 0.3}), y, t},
  };
  const std::set<std::string> of_classes{"categorical_hinge", "kl_divergence"};
  const std::set<std::string> above_zero{"poisson", "mean_squared_logarithmic_error"};
  for (const std::string& name : loss_names()) {
    if (name.find("crossentropy") != std::string::npos || name == "ctc") continue;
    const bool classes = of_classes.contains(name), above = above_zero.contains(name);
    const at::Tensor output = classes ? probabilities({6, 5}) : above ? y.abs() + 0.1 : y;
    const bool yes_or_no =
        name.find("hinge") != std::string::npos || name == "dice" || name == "tversky";
    const at::Tensor target = yes_or_no || classes ? one_hot : above ? t.abs() : t;
    rows.push_back({name, loss_by_name(name), output, target});
  }
  return rows;
}

class LoweredLoss : public Evaluated, public ::testing::WithParamInterface<size_t> {};

/// Each sample's loss, and the gradient of a weighted sum of them.
TEST_P(LoweredLoss, HasTheValuesAndGradientsOfItsKernel) {
  const LossRow row = loss_rows()[GetParam()];
  const at::Tensor output = row.output.clone().requires_grad_();
  const at::Tensor weights = (at::arange(output.size(0), at::kFloat) + 1).cos() + 2;
  const at::Tensor expected = row.loss.kernel().per_sample(output, row.target);
  (expected * weights).sum().backward();

  hlo::Program program("loss");
  std::vector<Array> arguments;
  const auto argument = [&](const at::Tensor& tensor, const char* name) {
    arguments.push_back(plain_array(tensor));
    return program.argument({arguments.back().dtype(), arguments.back().shape()}, name);
  };
  const hlo::Value y = argument(output, "y"), t = argument(row.target, "t");
  const auto lowered = row.loss.kernel().lower(y, t);
  ASSERT_TRUE(lowered.has_value());
  program.result(*lowered, "losses");
  const hlo::Value sum = hlo::reduce_sum(*lowered * argument(weights, "weights"), {0});
  program.result(hlo::gradients(sum, std::vector{y})[0], "gradient");
  const auto results = test::evaluate(program, arguments);

  const auto expect_close = [&](const Array& got, const at::Tensor& wanted, const char* what) {
    ASSERT_EQ(got.shape(), wanted.sizes().vec()) << what;
    const at::Tensor made = torch_tensor(got);
    const double scale = std::max(1.0, wanted.abs().max().item<double>());
    EXPECT_LE((made - wanted).abs().max().item<double>(), 1e-5 * scale) << what;
  };
  expect_close(results[0], expected.detach(), "losses");
  expect_close(results[1], output.grad(), "gradient");
}

INSTANTIATE_TEST_SUITE_P(Each, LoweredLoss, ::testing::Range(size_t{0}, loss_rows().size()),
                         [](const auto& info) { return loss_rows()[info.param].words; });

TEST(LoweredLosses, AFunctionOfAUsersIsNone) {
  hlo::Program program("loss");
  const hlo::Value y = program.argument({DType::float32, {3}}, "y");
  const Loss own("own", [](const at::Tensor& output, const at::Tensor&) { return output; });
  EXPECT_FALSE(own.kernel().lower(y, y).has_value());
  EXPECT_FALSE(losses::ctc().kernel().lower(y, y).has_value());
}

}  // namespace
}  // namespace tutti::lowered_losses
