// The gradient norm of a fit: that of plain autograd, in all its columns, gone on from a
// checkpoint.
#include <cmath>
#include <vector>

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/checkpointed.h"

namespace tutti {
namespace {

TEST(GradientNorm, IsThatOfPlainAutograd) {
  const at::Tensor x = torch::randn({30, 4});
  const at::Tensor y = torch::randint(0, 3, {30}, at::kLong);
  torch::nn::Linear plain(4, 3);
  torch::nn::functional::cross_entropy(plain->forward(x), y).backward();
  const double expected = std::sqrt(plain->weight.grad().square().sum().item<double>() +
                                    plain->bias.grad().square().sum().item<double>());
  Model model(strategy_of("mirrored", 2), [&] {
    torch::nn::Linear made(4, 3);
    const at::NoGradGuard no_grad;
    made->weight.copy_(plain->weight);
    made->bias.copy_(plain->bias);
    return made;
  });
  model.compile(
      {.optimizer = optim::Recipe(optim::sgd({.learning_rate = 0.1}), {.global_norm = 1e-3}),
       .loss = losses::sparse_categorical_crossentropy(),
       .measures = {.gradient_norm = true}});
  const History history = model.fit(x, y, {.max_steps = 1, .verbose = 0, .batch = 30});
  EXPECT_NEAR(history.last("gradient_norm"), expected, 1e-5 * expected);
}

TEST(GradientNorm, ChangesNoBitAndGoesOnWithinAnEpoch) {
  const TempFolder folder;
  const auto fit = [&](const Measures& measures, Callbacks callbacks, CheckpointOptions into) {
    Model model(strategy_of("mirrored", 2), [] { return graph_with_state(); });
    CompileOptions how = adam_and_accuracy();
    how.measures = measures;
    model.compile(how);
    FitOptions options = three_epochs(std::move(into));
    options.callbacks = std::move(callbacks);
    const History history = model.fit(samples(), options);
    return std::pair(model.weights_sha256(), history);
  };
  const Measures both{.noise_scale = true, .gradient_norm = true};
  const auto plain = fit({}, {}, {});
  const auto whole = fit(both, {}, {});
  EXPECT_EQ(whole.first, plain.first);
  EXPECT_THROW(fit(both, cut_after(6), {.folder = folder.path(), .every_steps = 1}), Cut);
  const auto resumed = fit(both, {}, {.folder = folder.path(), .every_steps = 1, .resume = true});
  EXPECT_EQ(resumed.first, whole.first);
  const auto norms = whole.second.column("gradient_norm");
  EXPECT_EQ(resumed.second.column("gradient_norm"), norms);
  EXPECT_THAT(norms, Each(::testing::Gt(0)));
}

TEST(GradientNorm, IsRefusedWhereNothingMeasuresIt) {
  Model model(strategy_of("mirrored", 1), [] { return graph_with_state(); });
  CompileOptions how = adam_and_accuracy();
  how.measures = {.gradient_norm = true};
  EXPECT_THAT(message_of<UsageError>([&] { model.compile(how); }),
              HasSubstr("gradient_norm: it is measured where gradients of replicas are added"));
}

}  // namespace
}  // namespace tutti
