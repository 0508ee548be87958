// LSTM and GRU: torch's parameters and values, and steps that are left out.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <limits>
#include <utility>
#include <vector>

#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/recurrent.h"

#include "tests/support/expect.h"

namespace tutti::recurrent {
namespace {

using nn::RecurrentCell;

struct Case {
  const char* name;
  RecurrentCell cell;
  bool bidirectional, sequences;
};

class RecurrentOf : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kFeatures = 3, kUnits = 4, kLength = 6;

  nn::Recurrent made(int64_t layers = 2) const {
    torch::manual_seed(5);
    return nn::Recurrent(nn::RecurrentOptions{.cell = GetParam().cell,
                                              .features = kFeatures,
                                              .units = kUnits,
                                              .layers = layers,
                                              .bidirectional = GetParam().bidirectional,
                                              .sequences = GetParam().sequences});
  }
};

/// What it gives, and gradients of the input and all parameters.
std::vector<at::Tensor> all_of(nn::Recurrent& module, const at::Tensor& given,
                               const at::Tensor& steps = {}) {
  module->zero_grad();
  const at::Tensor x = given.clone().requires_grad_();
  const at::Tensor y = module->forward(x, steps);
  (y * (at::arange(y.numel()) * 0.37 + 0.5).cos().reshape(y.sizes())).sum().backward();
  std::vector<at::Tensor> all{y.detach(), x.grad()};
  for (const at::Tensor& parameter : module->parameters()) all.push_back(parameter.grad().clone());
  return all;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST_P(RecurrentOf, BeginsAsTorchsModule) {
  nn::Recurrent own = made();
  torch::manual_seed(5);
  std::shared_ptr<torch::nn::Module> theirs;
  const auto told = [&](auto options) {
    return options.num_layers(2).bidirectional(GetParam().bidirectional).batch_first(true);
  };
  if (GetParam().cell == RecurrentCell::lstm)
    theirs = std::make_shared<torch::nn::LSTMImpl>(told(torch::nn::LSTMOptions(kFeatures, kUnits)));
  else
    theirs = std::make_shared<torch::nn::GRUImpl>(told(torch::nn::GRUOptions(kFeatures, kUnits)));
  const auto parameters = own->named_parameters(), expected = theirs->named_parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(parameters[i].key(), expected[i].key());
    EXPECT_TRUE(at::equal(parameters[i].value(), expected[i].value())) << expected[i].key();
  }
}

TEST_P(RecurrentOf, HasTorchsValuesAndGradients) {
  nn::Recurrent own = made();
  const at::Tensor x = at::randn({5, kLength, kFeatures});
  const auto got = all_of(own, x);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : own->parameters())
    weights.push_back(parameter.detach().clone().requires_grad_());
  const at::Tensor in = x.clone().requires_grad_();
  const int64_t directions = GetParam().bidirectional ? 2 : 1;
  const at::Tensor begin = at::zeros({2 * directions, 5, kUnits});
  at::Tensor y, state;
  if (GetParam().cell == RecurrentCell::lstm)
    std::tie(y, state, std::ignore) = at::lstm(in, {begin, begin}, weights, true, 2, 0, false,
                                               GetParam().bidirectional, /*batch_first=*/true);
  else
    std::tie(y, state) = at::gru(in, begin, weights, true, 2, 0, false, GetParam().bidirectional,
                                 /*batch_first=*/true);
  if (!GetParam().sequences) y = at::cat(state.slice(0, state.size(0) - directions).unbind(0), 1);
  (y * (at::arange(y.numel()) * 0.37 + 0.5).cos().reshape(y.sizes())).sum().backward();
  std::vector<at::Tensor> expected{y.detach(), in.grad()};
  for (const at::Tensor& weight : weights) expected.push_back(weight.grad());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-4, 1e-5)) << i;
}

TEST_P(RecurrentOf, AllStepsThereHaveTheBitsOfNoMask) {
  nn::Recurrent module = made();
  const at::Tensor x = at::randn({5, kLength, kFeatures});
  expect_equal(all_of(module, x, at::ones({5, kLength}, at::kBool)), all_of(module, x));
}

TEST_P(RecurrentOf, WhatStandsInStepsThatAreNotThereChangesNothing) {
  nn::Recurrent module = made();
  const at::Tensor steps = at::rand({5, kLength}) < 0.6;
  const at::Tensor x = at::randn({5, kLength, kFeatures});
  at::Tensor other = x.clone();
  other.masked_fill_(steps.logical_not().unsqueeze(2), std::numeric_limits<float>::quiet_NaN());
  const auto got = all_of(module, other, steps);
  expect_equal(got, all_of(module, x, steps));
  EXPECT_EQ(got[1].masked_select(steps.logical_not().unsqueeze(2)).abs().sum().item<float>(), 0);
  if (GetParam().sequences) {
    EXPECT_EQ(got[0].masked_select(steps.logical_not().unsqueeze(2)).abs().sum().item<float>(), 0);
  }
}

/// A sample's steps that are there, alone: a sequence without holes, of its own length.
TEST_P(RecurrentOf, EachSampleIsThatOfItsStepsAlone) {
  nn::Recurrent module = made();
  const at::Tensor steps = at::rand({7, kLength}) < 0.6;
  steps[0].fill_(false);
  const at::Tensor x = at::randn({7, kLength, kFeatures});
  const at::NoGradGuard no_grad;
  const at::Tensor all = module->forward(x, steps);
  EXPECT_EQ(all[0].abs().sum().item<float>(), 0) << "no step: the state that it begins with";
  for (int64_t row = 1; row < 7; ++row) {
    const at::Tensor there = at::nonzero(steps[row]).flatten();
    if (there.numel() == 0) continue;
    const at::Tensor alone = module->forward(x[row].index_select(0, there).unsqueeze(0))[0];
    const at::Tensor own = GetParam().sequences ? all[row].index_select(0, there) : all[row];
    EXPECT_TRUE(at::allclose(own, alone, 1e-5, 1e-6)) << row;
  }
}

/// Gradients, too: those of the sum over samples of what each one's steps give alone.
TEST_P(RecurrentOf, GradientsAreThoseOfEachSamplesStepsAlone) {
  nn::Recurrent module = made();
  const at::Tensor steps = at::tensor({1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0,
                                       0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
                               .reshape({5, kLength})
                               .to(at::kBool);
  const at::Tensor given = at::randn({5, kLength, kFeatures});
  const int64_t width = (GetParam().bidirectional ? 2 : 1) * kUnits;
  const at::Tensor weights =
      GetParam().sequences ? at::randn({5, kLength, width}) : at::randn({5, width});
  const auto gradients = [&](const at::Tensor& x) {
    std::vector<at::Tensor> all{x.grad().clone()};
    for (const at::Tensor& parameter : module->parameters())
      all.push_back(parameter.grad().clone());
    module->zero_grad();
    return all;
  };
  const at::Tensor x = given.clone().requires_grad_();
  (module->forward(x, steps) * weights).sum().backward();
  const auto got = gradients(x);
  const at::Tensor alone = given.clone().requires_grad_();
  at::Tensor sum = at::zeros({});
  for (int64_t row = 0; row < 4; ++row) {  // the last one has no step
    const at::Tensor there = at::nonzero(steps[row]).flatten();
    const at::Tensor y = module->forward(alone[row].index_select(0, there).unsqueeze(0))[0];
    const at::Tensor own =
        GetParam().sequences ? weights[row].index_select(0, there) : weights[row];
    sum = sum + (y * own).sum();
  }
  sum.backward();
  const auto expected = gradients(alone);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-4, 1e-5)) << i;
}

TEST_P(RecurrentOf, ASampleDoesNotDependOnTheOthers) {
  nn::Recurrent module = made(1);
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({8, kLength, kFeatures});
  EXPECT_TRUE(at::allclose(module->forward(x).slice(0, 2, 5), module->forward(x.slice(0, 2, 5)),
                           1e-5, 1e-6));
}

TEST_P(RecurrentOf, NoSamplesGiveNone) {
  nn::Recurrent module = made();
  const at::Tensor y = module->forward(at::zeros({0, kLength, kFeatures}));
  EXPECT_EQ(y.size(0), 0);
  y.sum().backward();
}

INSTANTIATE_TEST_SUITE_P(
    Cells, RecurrentOf,
    ::testing::Values(Case{"lstm", RecurrentCell::lstm, false, false},
                      Case{"lstm_sequences", RecurrentCell::lstm, false, true},
                      Case{"lstm_both_ways", RecurrentCell::lstm, true, false},
                      Case{"lstm_both_ways_sequences", RecurrentCell::lstm, true, true},
                      Case{"gru", RecurrentCell::gru, false, false},
                      Case{"gru_both_ways_sequences", RecurrentCell::gru, true, true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Recurrent, OfOneStep) {
  nn::Recurrent module(nn::RecurrentOptions{.features = 2, .units = 3, .bidirectional = true});
  const at::Tensor x = at::randn({2, 1, 2});
  module->forward(x).sum().backward();
  for (const auto& parameter : module->named_parameters())
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  EXPECT_EQ(module->named_parameters()["weight_hh_l0"].grad().abs().sum().item<float>(), 0);
}

// Of one row or one step, rows of steps and steps of rows are the same memory.
TEST(Recurrent, WhatItGivesMayBeWrittenToBeforeBackward) {
  for (const RecurrentCell cell : {RecurrentCell::lstm, RecurrentCell::gru})
    for (const auto& [rows, length] : {std::pair(1, 5), {4, 1}, {1, 1}, {4, 5}}) {
      nn::Recurrent module(
          nn::RecurrentOptions{.cell = cell, .features = 2, .units = 3, .sequences = true});
      const at::Tensor x = at::randn({rows, length, 2}), weights = at::randn({rows, length, 3});
      const auto gradients = [&](bool writes) {
        module->zero_grad();
        at::Tensor y = module->forward(x);
        y = writes ? y.mul_(2) : y * 2;
        (y * weights).sum().backward();
        std::vector<at::Tensor> all;
        for (const at::Tensor& parameter : module->parameters())
          all.push_back(parameter.grad().clone());
        return all;
      };
      expect_equal(gradients(true), gradients(false));
    }
}

TEST(Recurrent, AWriteToWhatItReadBeforeBackwardIsSeen) {
  for (const auto& [rows, length] : {std::pair(1, 5), {4, 1}}) {
    nn::Recurrent module(nn::RecurrentOptions{.features = 2, .units = 3});
    at::Tensor x = at::randn({rows, length, 2});
    const at::Tensor y = module->forward(x);
    x.mul_(2);
    EXPECT_THAT(message_of<c10::Error>([&] { y.sum().backward(); }),
                HasSubstr("modified by an inplace operation"));
    at::Tensor steps = at::ones({rows, length}, at::kBool);
    const at::Tensor masked = module->forward(x, steps);
    steps.fill_(false);
    EXPECT_THAT(message_of<c10::Error>([&] { masked.sum().backward(); }),
                HasSubstr("modified by an inplace operation"));
  }
}

TEST(Recurrent, IsComputedInItsOwnPrecisionUnderAutocast) {
  nn::Recurrent module(nn::RecurrentOptions{.features = 2, .units = 3});
  const at::Tensor x = at::randn({2, 4, 2});
  const at::Tensor expected = module->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor got = module->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(got, expected));
}

TEST(Recurrent, RefusesWhatItHasNot) {
  EXPECT_THAT(message_of<UsageError>([] { nn::Recurrent(nn::RecurrentOptions{.units = 0}); }),
              HasSubstr("units is 0, must be 1 or more"));
  nn::Recurrent module(nn::RecurrentOptions{.features = 2, .units = 3});
  EXPECT_THAT(message_of<UsageError>([&] { module->forward(at::zeros({4, 5, 3})); }),
              AllOf(HasSubstr("[4, 5, 3]"), HasSubstr("[batch, length, 2]")));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { module->forward(at::zeros({4, 5, 2}), at::ones({4, 6}, at::kBool)); }),
              AllOf(HasSubstr("[4, 6]"), HasSubstr("booleans [4, 5]")));
  const at::Tensor x = at::randn({2, 4, 2}).requires_grad_();
  EXPECT_THAT(message_of<UsageError>([&] {
                torch::autograd::grad({module->forward(x).sum()}, {x}, {}, std::nullopt,
                                      /*create_graph=*/true);
              }),
              HasSubstr("create_graph"));
}

nn::Graph counted(nn::Shape steps) {
  const auto x = nn::input({4, 2}), given = nn::input(std::move(steps));
  return {{{"x", x}, {"steps", given}}, {{"y", nn::lstm(3)(x, given)}}};
}

TEST(RecurrentSteps, ThatCannotBeNameRowAndPlace) {
  const at::Tensor x = at::zeros({2, 4, 2});
  const auto refusal = [&](nn::Shape shape, std::vector<float> values) {
    nn::GraphModule module(counted(shape));
    const at::Tensor steps = at::tensor(values).reshape({2, shape[0]});
    return message_of<DataError>([&] { module.forward_all({x, steps}); });
  };
  EXPECT_THAT(refusal({1}, {4, 5}),
              AllOf(HasSubstr("lstm \"lstm_1\": row 1 of the batch has 5 steps"),
                    HasSubstr("a whole number from 0 to 4")));
  EXPECT_THAT(refusal({1}, {-1, 4}), HasSubstr("row 0 of the batch has -1 steps"));
  EXPECT_THAT(refusal({1}, {2, 2.5}), HasSubstr("row 1 of the batch has 2.5 steps"));
  EXPECT_THAT(refusal({4}, {1, 1, 0, 0, 1, 0.5, 0, 0}),
              HasSubstr("row 1 of the batch has a mask of 0.5 at step 1, expected 1 or 0"));
}

/// Before they are on a device, where nobody looks at them.
TEST(RecurrentSteps, OfInputsAreLookedAtOnTheHost) {
  const auto refusal = [](const nn::Graph& graph, const at::Tensor& steps) {
    return message_of<DataError>(
        [&] { nn::detail::require_steps_of_inputs(graph, {at::zeros({2, 4, 2}), steps}); });
  };
  EXPECT_THAT(refusal(counted({1}), at::tensor({4, 500}).reshape({2, 1})),
              HasSubstr("lstm \"lstm_1\": row 1 of the batch has 500 steps"));
  EXPECT_THAT(refusal(counted({1}), at::full({2, 1}, NAN)),
              HasSubstr("row 0 of the batch has nan"));
  EXPECT_THAT(refusal(counted({4}), at::full({2, 4}, 0.5)),
              HasSubstr("row 0 of the batch has a mask of 0.5 at step 0"));
  const auto passes = [](const nn::Graph& graph, const at::Tensor& steps) {
    nn::detail::require_steps_of_inputs(graph, {at::zeros({2, 4, 2}), steps});
  };
  passes(counted({1}), at::tensor({0, 4}).reshape({2, 1}));
  passes(counted({4}), at::ones({2, 4}, at::kBool));
  passes(counted({4}), at::full({2, 3}, 7)) /* another shape is for forward() to refuse */;
}

TEST(RecurrentSteps, CountsAndMasksAreTheSame) {
  torch::manual_seed(2);
  nn::GraphModule by_count(counted({1}));
  torch::manual_seed(2);
  nn::GraphModule by_mask(counted({4}));
  const at::Tensor x = at::randn({3, 4, 2});
  const at::Tensor mask =
      torch::tensor({{1.F, 1.F, 1.F, 1.F}, {1.F, 1.F, 0.F, 0.F}, {0.F, 0.F, 0.F, 0.F}});
  const at::Tensor y = by_count.forward_all({x, torch::tensor({{4.F}, {2.F}, {0.F}})})[0];
  EXPECT_TRUE(at::equal(y, by_mask.forward_all({x, mask})[0]));
}

TEST(RecurrentSteps, MayBeAFeatureOfTheSequence) {
  const auto x = nn::input({4, 3});
  const auto there = nn::reshape({4})(nn::slice(2, 3)(x));
  torch::manual_seed(2);
  nn::GraphModule of_feature({x, nn::lstm(3)(nn::slice(0, 2)(x), there)});
  torch::manual_seed(2);
  nn::GraphModule by_mask(counted({4}));
  const at::Tensor points = at::randn({3, 4, 2}), mask = (at::rand({3, 4}) < 0.5).to(at::kFloat);
  const at::Tensor both = at::cat({points, mask.unsqueeze(2)}, 2);
  EXPECT_TRUE(at::equal(of_feature.forward(both), by_mask.forward_all({points, mask})[0]));
}

}  // namespace
}  // namespace tutti::recurrent
