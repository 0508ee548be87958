// Losses against tables of Keras's and PyTorch's: tests/tables/make_losses.py writes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "tutti/train/losses/overlap.h"

namespace tutti {
namespace {

using PlainJson = nlohmann::json;

Loss made(const PlainJson& row) {
  const std::string name = row.at("loss");
  const PlainJson& options = row.at("options");
  const bool from_logits = options.value("from_logits", true);
  const double smoothing = options.value("label_smoothing", 0.0);
  if (name == "sparse_categorical_crossentropy") {
    return losses::sparse_categorical_crossentropy(
        {.from_logits = from_logits,
         .label_smoothing = smoothing,
         .class_weights = options.value("class_weights", std::vector<double>()),
         .gamma = options.value("gamma", 0.0)});
  }
  if (name == "binary_focal_crossentropy")
    return losses::binary_focal_crossentropy(
        {.from_logits = from_logits,
         .label_smoothing = smoothing,
         .gamma = options.value("gamma", 2.0),
         .alpha = options.contains("alpha") ? std::optional<double>(options.at("alpha"))
                                            : std::nullopt});
  if (name == "categorical_focal_crossentropy")
    return losses::categorical_focal_crossentropy(
        {.from_logits = from_logits,
         .label_smoothing = smoothing,
         .gamma = options.value("gamma", 2.0),
         .alpha = options.value("alpha", std::vector<double>{0.25})});
  if (name == "dice")
    return losses::dice({.from_logits = from_logits, .softmax = options.value("softmax", false)});
  if (name == "tversky")
    return losses::tversky({.from_logits = from_logits,
                            .softmax = options.value("softmax", false),
                            .alpha = options.value("alpha", 0.5),
                            .beta = options.value("beta", 0.5)});
  const losses::CrossentropyOptions entropy{.from_logits = from_logits,
                                            .label_smoothing = smoothing};
  if (name == "categorical_crossentropy") return losses::categorical_crossentropy(entropy);
  if (name == "binary_crossentropy") return losses::binary_crossentropy(entropy);
  if (name == "huber") return losses::huber({.delta = options.value("delta", 1.0)});
  return losses::loss_by_name(name);
}

at::Tensor tensor_of(const PlainJson& row, const char* values, const char* shape) {
  return torch::tensor(row.at(values).get<std::vector<double>>(), torch::kFloat64)
      .reshape(row.at(shape).get<std::vector<int64_t>>());
}

void expect_near(const at::Tensor& got, const PlainJson& expected, double tolerance,
                 const char* what) {
  const auto values = got.detach().to(torch::kFloat64).flatten().contiguous();
  ASSERT_EQ(values.numel(), static_cast<int64_t>(expected.size())) << what;
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double wanted = expected[static_cast<size_t>(i)];
    EXPECT_NEAR(values[i].item<double>(), wanted, tolerance * std::max(1.0, std::abs(wanted)))
        << what << " " << i;
  }
}

void expect_row(const PlainJson& row, torch::Dtype dtype, double tolerance) {
  SCOPED_TRACE(row.at("name").get<std::string>() + " " + torch::toString(dtype));
  const Loss loss = made(row);
  const bool labels = loss.name() == "sparse_categorical_crossentropy" || loss.name() == "ctc";
  const auto output = tensor_of(row, "output", "shape").to(dtype).requires_grad_();
  const auto target = tensor_of(row, "target", "target_shape").to(labels ? torch::kInt64 : dtype);
  const auto weights = torch::tensor(row.at("weights").get<std::vector<double>>(), dtype);

  expect_near(loss.kernel().per_sample(output, target), row.at("per_sample"), tolerance,
              "loss of sample");
  double total = 0;
  const double scale = 0.25;
  const at::Tensor value = loss.kernel().scaled_sum(output, target, scale, total, weights);
  const PlainJson sum = PlainJson::array({row.at("weighted_sum")});
  expect_near(torch::tensor(total, torch::kFloat64), sum, tolerance, "total");
  expect_near(value / scale, sum, tolerance, "value");
  value.backward();
  expect_near(output.grad() / scale, row.at("gradient"), tolerance, "gradient");
  double evaluated = 0;
  loss.kernel().add_to(output, target, evaluated, weights);
  EXPECT_NEAR(evaluated, total, 1e-12 * std::max(1.0, std::abs(total)));
}

TEST(LossTables, ValuesAndGradientsAreThoseOfKerasAndPyTorch) {
  std::ifstream file("tests/tables/losses.json");
  ASSERT_TRUE(file) << "run it in the root of the sources";
  std::set<std::string> seen;
  for (const PlainJson& row : PlainJson::parse(file)) {
    seen.insert(row.at("loss").get<std::string>());
    expect_row(row, torch::kFloat64, row.at("tolerance"));
    expect_row(row, torch::kFloat32, 2e-6);
  }
  EXPECT_THAT(losses::loss_names(), ::testing::ElementsAreArray(seen)) << "a loss without a case";
}

}  // namespace
}  // namespace tutti
