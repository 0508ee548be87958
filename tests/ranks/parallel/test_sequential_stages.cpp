// A Sequential cut between its layers: names, borders, and the bits of the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/parallel/model/layer_costs.h"
#include "tutti/parallel/stages/pipeline.h"
#include "tutti/parallel/stages/sequential_stages.h"

#include "tests/support/message_of.h"
#include "tests/support/pipeline_ranks.h"

namespace tutti::parallel {
namespace {

using test::drawn;
using test::message_of;
using test::Values;
using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Sequential small_net() {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)),
                            torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Flatten(),
                            torch::nn::Linear(4 * 6 * 6, 5));
  const at::NoGradGuard no_gradient;
  uint64_t seed = 0;
  for (at::Tensor& parameter : net->parameters())
    parameter.copy_(drawn(parameter.sizes(), ++seed) / 4);
  return net;
}
const Border kPhoto{.shape = {3, 8, 8}};

TEST(SequentialStages, HaveNamesAndBordersOfTheWhole) {
  auto net = small_net();
  net[1]->eval();
  const auto stages = sequential_stages(net, kPhoto, {0, 1, 3, 5});
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(stages[0].module->named_parameters().keys(),
            (std::vector<std::string>{"0.weight", "0.bias"}));
  EXPECT_EQ(stages[2].module->named_parameters().keys(),
            (std::vector<std::string>{"4.weight", "4.bias"}));
  EXPECT_TRUE(stages[0].inputs.empty());
  EXPECT_EQ(stages[0].outputs, (std::vector<Border>{{.shape = {4, 6, 6}}}));
  EXPECT_EQ(stages[1].inputs, stages[0].outputs);
  EXPECT_EQ(stages[2].inputs, stages[1].outputs);
  EXPECT_TRUE(stages[2].outputs.empty());
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(net[1]->is_training());
  EXPECT_TRUE(net[4]->is_training());
  EXPECT_TRUE(at::equal(net->named_buffers()["1.running_mean"], at::zeros({4})));
}

struct Block : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return norm(conv(x)); }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 3, 1));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(3));
};

// A layer that infers inside a block that trains.
TEST(SequentialStages, BalancedCutsLeaveEachPartInItsMode) {
  const auto block = std::make_shared<Block>();
  block->norm->eval();
  torch::nn::Sequential net(block, torch::nn::Conv2d(3, 2, 1));
  EXPECT_EQ(balanced_cuts(net, kPhoto, 2), (std::vector<size_t>{0, 1, 2}));
  EXPECT_TRUE(block->is_training());
  EXPECT_TRUE(block->conv->is_training());
  EXPECT_FALSE(block->norm->is_training());
}

TEST(SequentialStages, HaveTheBitsOfTheWhole) {
  at::set_num_threads(1);  // a convolution of oneDNN adds its photos by thread
  const auto loss = [](int, at::TensorList y) { return y[0].square().sum(); };
  const auto photos = [](int i) { return drawn({2, 3, 8, 8}, static_cast<uint64_t>(i)); };
  auto whole = small_net();
  std::vector<Values> leaves(whole->parameters().size());
  for (int i = 0; i < 4; ++i) {
    const auto gradients =
        torch::autograd::grad({loss(i, {whole->forward(photos(i))})}, whole->parameters());
    for (size_t k = 0; k < gradients.size(); ++k) leaves[k].push_back(gradients[k]);
  }
  std::vector<Values> got(2);
  test::run_all_members(test::make_engines("shm", 2), [&](const Group& group) {
    at::set_num_threads(1);
    auto stages = sequential_stages(small_net(), kPhoto, {0, 2, 5});
    const auto rank = static_cast<size_t>(group.rank());
    Pipeline pipeline(group, mesh::one_f_one_b({.ranks = 2, .microbatches = 4}), {stages[rank]},
                      {});
    got[rank] = pipeline.step({.sizes = {2, 2, 2, 2},
                               .inputs = [&](int i) { return Values{photos(i)}; },
                               .loss = loss})[0];
  });
  Values sums = got[0];
  sums.insert(sums.end(), got[1].begin(), got[1].end());
  ASSERT_EQ(sums.size(), leaves.size());
  for (size_t k = 0; k < sums.size(); ++k)
    EXPECT_TRUE(at::equal(sums[k], test::added_as_a_tree(leaves[k]))) << k;
}

TEST(SequentialStages, RefuseWrongCutsAndSharedParameters) {
  for (const auto& cuts :
       std::vector<std::vector<size_t>>{{}, {0}, {0, 4}, {1, 5}, {0, 3, 3, 5}, {0, 6}})
    EXPECT_THAT(message_of<UsageError>([&] { sequential_stages(small_net(), kPhoto, cuts); }),
                HasSubstr("the 5 children"));
  const torch::nn::Linear shared(3, 3);
  EXPECT_THAT(message_of<UsageError>([&] {
                sequential_stages(torch::nn::Sequential(shared, torch::nn::ReLU(), shared),
                                  {.shape = {3}}, {0, 2, 3});
              }),
              AllOf(HasSubstr("2.weight of stage 1"), HasSubstr("of stage 0")));
}

}  // namespace
}  // namespace tutti::parallel
