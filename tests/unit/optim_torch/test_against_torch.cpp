// Our rules beside torch::optim's on the same random gradients, 100 steps: max|d| / max|p| <= 1e-6.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/optim/rule.h"

namespace tutti::optim {
namespace {

using TorchOptimizer = std::unique_ptr<torch::optim::Optimizer>;
using Parameters = std::vector<at::Tensor>;

struct Case {
  std::string name;
  Rule rule;
  std::function<TorchOptimizer(Parameters)> make_torch;
};

template <class Optimizer, class Options>
auto maker(Options options) {
  return [options](Parameters parameters) -> TorchOptimizer {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::vector<Case> all_cases() {
  using torch::optim::Adagrad;
  using torch::optim::Adam;
  using torch::optim::AdamW;
  using torch::optim::SGD;
  const auto torch_sgd = [] { return torch::optim::SGDOptions(0.05); };
  const auto torch_adam = [](double rate) { return torch::optim::AdamOptions(rate); };
  return {
      {"sgd", sgd({.learning_rate = 0.05}), maker<SGD>(torch_sgd())},
      {"sgd decay", sgd({.learning_rate = 0.05, .weight_decay = 0.01}),
       maker<SGD>(torch_sgd().weight_decay(0.01))},
      {"sgd momentum", sgd({.learning_rate = 0.05, .momentum = 0.9}),
       maker<SGD>(torch_sgd().momentum(0.9))},
      {"sgd nesterov decay",
       sgd({.learning_rate = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}),
       maker<SGD>(torch_sgd().momentum(0.9).nesterov(true).weight_decay(0.01))},
      {"adam", adam(), maker<Adam>(torch_adam(1e-3))},
      {"adam fast, decay", adam({.learning_rate = 0.01, .weight_decay = 0.02}),
       maker<Adam>(torch_adam(0.01).weight_decay(0.02))},
      {"adam other betas", adam({.beta1 = 0.8, .beta2 = 0.99, .epsilon = 1e-3}),
       maker<Adam>(torch_adam(1e-3).betas({0.8, 0.99}).eps(1e-3))},
      {"adamw", adamw(), maker<AdamW>(torch::optim::AdamWOptions(1e-3))},
      {"adamw decay", adamw({.learning_rate = 0.01, .weight_decay = 0.1}),
       maker<AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1))},
      {"adam amsgrad", adam({.beta2 = 0.9, .weight_decay = 0.02, .amsgrad = true}),
       maker<Adam>(torch_adam(1e-3).betas({0.9, 0.9}).weight_decay(0.02).amsgrad(true))},
      {"adamw amsgrad", adamw({.learning_rate = 0.01, .beta2 = 0.9, .amsgrad = true}),
       maker<AdamW>(torch::optim::AdamWOptions(0.01).betas({0.9, 0.9}).amsgrad(true))},
      {"adagrad", adagrad(), maker<Adagrad>(torch::optim::AdagradOptions(0.01))},
      {"adagrad decay",
       adagrad({.learning_rate = 0.1, .initial_accumulator = 0.1, .weight_decay = 0.05}),
       maker<Adagrad>(
           torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.1).weight_decay(0.05))},
  };
}

class AgainstTorch : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AgainstTorch, HundredStepsAgree) {
  const bool single = GetParam() == at::kFloat;
  const double tolerance = single ? 1e-6 : 1e-14;
  for (const Case& c : all_cases()) {
    torch::manual_seed(3);
    const auto start = torch::randn({37, 29}, GetParam());
    auto theirs = start.clone().requires_grad_();
    auto ours = start.clone();
    const auto optimizer = c.make_torch({theirs});
    // Garbage where torch has nothing yet: SGD's buffer is not read at first.
    const bool unread = std::holds_alternative<SgdOptions>(c.rule.options());
    const double filled = unread || c.rule.num_states() == 0 ? 7.0 : c.rule.state_start(0);
    auto m = torch::full_like(ours, filled), v = torch::full_like(ours, filled);
    auto w = torch::full_like(ours, filled);
    std::vector<void*> states = {m.data_ptr(), v.data_ptr(), w.data_ptr()};
    states.resize(static_cast<size_t>(c.rule.num_states()));
    StepScalars scalars;
    for (int step = 0; step < 100; ++step) {
      // Gradients of very different sizes, some exactly zero.
      auto gradient = torch::randn_like(ours) * torch::exp(3 * torch::randn_like(ours));
      gradient.masked_fill_(torch::rand_like(ours) < 0.1, 0);
      theirs.mutable_grad() = gradient.clone();
      optimizer->step();
      scalars = c.rule.next(scalars, c.rule.learning_rate());
      c.rule.update(single ? DType::float32 : DType::float64, ours.data_ptr(), gradient.data_ptr(),
                    states, ours.numel(), scalars);
    }
    const double difference = (ours - theirs.detach()).abs().max().item<double>();
    const double largest = theirs.detach().abs().max().item<double>();
    EXPECT_LE(difference / largest, tolerance) << c.name;
    EXPECT_GT((ours - start).abs().max().item<double>(), 1e-2) << c.name << " did not move";
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AgainstTorch, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace tutti::optim
