// Dense layers in several blocks of one rank: the bits of a rank for each block, values and
// gradients of plain torch, second derivatives, and where parts go in memory.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tutti/parallel/tensor/detail/block_memory.h"
#include "tutti/parallel/tensor/detail/cut.h"

#include "tests/support/message_of.h"
#include "tests/support/tensor_ranks.h"

namespace tutti::parallel {
namespace {

using detail::BlockCut;
using test::message_of;
using test::on_tensor_ranks;
using ::testing::HasSubstr;

at::Tensor waves(at::IntArrayRef shape, double step) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).mul(step).sin().view(shape);
}

// ---- memory ----

struct CutCase {
  std::string name;
  std::vector<int64_t> shape;
  BlockCut cut;
};

/// The second half is large enough for stores that go by the caches.
std::vector<CutCase> cut_cases() {
  return {
      {"rows", {6, 5}, {.sizes = {3, 2, 1}}},
      {"rows of three", {18, 5}, {.sizes = {3, 2, 1}, .stacked = 3}},
      {"a bias of three", {18}, {.sizes = {3, 2, 1}, .stacked = 3}},
      {"columns", {5, 6}, {.sizes = {3, 2, 1}, .axis = 1}},
      {"a block", {5, 6}, {.sizes = {6}, .axis = 1}},
      {"large rows", {1024, 512}, {.sizes = {512, 512}}},
      {"large rows of three", {1536, 256}, {.sizes = {256, 256}, .stacked = 3}},
      {"large columns", {512, 1024}, {.sizes = {512, 256, 256}, .axis = 1}},
      {"large columns, some of them on no line", {512, 1000}, {.sizes = {500, 500}, .axis = 1}},
      {"large columns, rows on no line", {512, 1030}, {.sizes = {16, 1014}, .axis = 1}},
      {"large rows that begin on no line", {1001, 301}, {.sizes = {501, 500}}},
  };
}

Blocks parts_of_torch(const at::Tensor& whole, const BlockCut& cut) {
  if (cut.axis == 1) return whole.split_with_sizes(cut.sizes, 1);
  Blocks parts = whole.unflatten(0, {cut.stacked, -1}).split_with_sizes(cut.sizes, 1);
  for (at::Tensor& part : parts) part = part.flatten(0, 1);
  return parts;
}

TEST(BlockMemory, PartsAreThoseOfTorchOnLines) {
  for (const auto& [name, shape, cut] : cut_cases()) {
    SCOPED_TRACE(name);
    const at::Tensor whole = waves(shape, 0.7);
    const Blocks parts = detail::taken_apart(whole, cut);
    const Blocks expected = parts_of_torch(whole, cut);
    ASSERT_EQ(parts.size(), expected.size());
    for (size_t block = 0; block < parts.size(); ++block) {
      EXPECT_TRUE(at::equal(parts[block], expected[block])) << block;
      EXPECT_TRUE(parts[block].is_contiguous()) << block;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(parts[block].const_data_ptr()) % 64, 0) << block;
    }
  }
}

TEST(BlockMemory, WhatIsTakenApartIsPutTogether) {
  for (const auto& [name, shape, cut] : cut_cases()) {
    SCOPED_TRACE(name);
    const at::Tensor whole = waves(shape, 0.7), again = at::full(shape, NAN);
    const Blocks parts = parts_of_torch(whole, cut);
    for (size_t block = 0; block < parts.size(); ++block)
      detail::put_part(again, cut, block, parts[block].contiguous());
    EXPECT_TRUE(at::equal(again, whole));
  }
}

TEST(BlockMemory, APartIsWrittenToItsPlaceAlone) {
  for (const auto& [name, shape, cut] : cut_cases()) {
    if (cut.sizes.size() == 1) continue;
    SCOPED_TRACE(name);
    const at::Tensor whole = at::zeros(shape);
    const at::Tensor expected = at::zeros(shape);
    const at::Tensor part = parts_of_torch(waves(shape, 0.7), cut)[1].contiguous();
    detail::put_part(whole, cut, 1, part);
    const at::Tensor places = at::arange(whole.numel()).view(shape);
    expected.view(-1).index_put_({parts_of_torch(places, cut)[1].flatten()}, part.flatten());
    EXPECT_TRUE(at::equal(whole, expected));
  }
}

// ---- layers ----

struct MlpShape {
  int64_t rows, features, hidden;
  int blocks;
};
std::ostream& operator<<(std::ostream& out, const MlpShape& shape) {
  return out << shape.rows << " rows, " << shape.features << " x " << shape.hidden << ", "
             << shape.blocks << " blocks";
}

using Tensors = std::map<std::string, at::Tensor>;

/// Initial values of torch::nn::Linear's kind, the same on all ranks.
at::Tensor drawn(at::IntArrayRef shape, uint64_t seed, int64_t in_features) {
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  return at::empty(shape).uniform_(-bound, bound, at::detail::createCPUGenerator(seed));
}

/// Columns, gelu, then rows, by the functions that layers of a graph are computed by.
struct Mlp {
  Mlp(const TensorGroup& of, int64_t features, int64_t units)
      : group(of),
        hidden(units),
        pieces{{"up.weight", detail::piece_along(group, "up", {hidden, features}, 0)},
               {"up.bias", detail::piece_along(group, "up", {hidden}, 0)},
               {"down.weight", detail::piece_along(group, "down", {features, hidden}, 1)}},
        parameters{{"up.weight", drawn({hidden, features}, 1, features)},
                   {"up.bias", drawn({hidden}, 2, features)},
                   {"down.weight", drawn({features, hidden}, 3, hidden)},
                   {"down.bias", drawn({features}, 4, hidden)}} {
    for (const auto& [name, piece] : pieces)
      parameters[name] = piece_of(parameters[name], piece).contiguous();
    for (auto& [name, parameter] : parameters) parameter.requires_grad_();
  }
  at::Tensor operator()(const at::Tensor& x) const {
    Blocks blocks = detail::column_products(
        group, copy_to(group, x), {parameters.at("up.weight"), parameters.at("up.bias"), hidden});
    for (at::Tensor& block : blocks) block = at::gelu(block);
    return detail::row_sum(
        group, detail::row_products(group, blocks, parameters.at("down.weight"), hidden),
        parameters.at("down.bias"));
  }

  TensorGroup group;
  int64_t hidden;
  std::map<std::string, Piece> pieces;
  Tensors parameters;
};

/// The same of whole parameters, of plain torch.
at::Tensor plain_mlp(const Tensors& parameters, const at::Tensor& x) {
  const at::Tensor hidden = torch::linear(x, parameters.at("up.weight"), parameters.at("up.bias"));
  return torch::linear(at::gelu(hidden), parameters.at("down.weight"), parameters.at("down.bias"));
}

/// Of a step of an MLP. By name: y, dx, and the gradients of the parameters.
struct MlpStep {
  Tensors values;
  Tensors parameters;
  std::map<std::string, Piece> pieces;
};

at::Tensor wave_loss(const at::Tensor& y) { return (y * (waves(y.sizes(), 0.3) + 2)).sum(); }

MlpStep step_of(const TensorGroup& group, const MlpShape& shape) {
  const Mlp mlp(group, shape.features, shape.hidden);
  // Three dimensions: the layers make rows of them.
  const at::Tensor x = waves({2, shape.rows / 2, shape.features}, 0.01).requires_grad_();
  const at::Tensor y = mlp(x);
  wave_loss(y).backward();
  MlpStep step{.values = {{"y", y.detach()}, {"dx", x.grad()}}, .pieces = mlp.pieces};
  for (const auto& [name, parameter] : mlp.parameters) {
    step.parameters[name] = parameter.detach();
    step.values[name] = parameter.grad();
  }
  return step;
}

class MlpsOf : public ::testing::TestWithParam<MlpShape> {};

TEST_P(MlpsOf, AnyNumberOfRanksHasTheSameBits) {
  const MlpShape shape = GetParam();
  const auto on = [&](int ranks) {
    return on_tensor_ranks(ranks, shape.blocks,
                           [&](const TensorGroup& group) { return step_of(group, shape); });
  };
  const MlpStep one = on(1)[0];
  for (int ranks = 2; ranks <= shape.blocks; ++ranks)
    for (const MlpStep& rank : on(ranks))
      for (const auto& [name, value] : rank.values) {
        const auto piece = rank.pieces.find(name);
        const at::Tensor& whole = one.values.at(name);
        EXPECT_TRUE(
            at::equal(value, piece == rank.pieces.end() ? whole : piece_of(whole, piece->second)))
            << name << " on " << ranks << " ranks";
      }
}

TEST_P(MlpsOf, GradientsAreThoseOfPlainTorch) {
  const MlpShape shape = GetParam();
  const MlpStep step = step_of(TensorGroup(shape.blocks), shape);
  Tensors plain;
  for (const auto& [name, parameter] : step.parameters)
    plain[name] = parameter.to(at::kDouble).requires_grad_();
  const at::Tensor x =
      waves({2, shape.rows / 2, shape.features}, 0.01).to(at::kDouble).requires_grad_();
  const at::Tensor y = plain_mlp(plain, x);
  (y * (waves(y.sizes(), 0.3) + 2)).sum().backward();
  const auto expect_near = [](const std::string& name, const at::Tensor& got,
                              const at::Tensor& expected) {
    EXPECT_LE((got - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>())
        << name;
  };
  expect_near("y", step.values.at("y"), y);
  expect_near("dx", step.values.at("dx"), x.grad());
  for (const auto& [name, parameter] : plain)
    expect_near(name, step.values.at(name), parameter.grad());
}

// Small products are the BLAS's, large ones may be oneDNN's. 1000 and 1030 are on no lines in 3 and
// 4 parts; weights of 1 MiB and more are put together by the caches.
INSTANTIATE_TEST_SUITE_P(Shapes, MlpsOf,
                         ::testing::Values(MlpShape{2, 8, 12, 3}, MlpShape{4, 33, 70, 4},
                                           MlpShape{32, 256, 1024, 2}, MlpShape{32, 256, 1024, 4},
                                           MlpShape{32, 512, 2048, 2}, MlpShape{34, 300, 1000, 3},
                                           MlpShape{130, 256, 1030, 4}));

TEST(BlockProducts, ReluAndStackedPartsHaveTheBitsOfARankEach) {
  struct Of {
    Blocks y;
    at::Tensor dx, dweight, dbias;
  };
  constexpr int64_t kFeatures = 200, kUnits = 3 * 130;
  const auto run = [&](const TensorGroup& group) {
    const Piece piece = detail::piece_along(group, "qkv", {kUnits, kFeatures}, 0, 3);
    const Piece of_bias = detail::piece_along(group, "qkv", {kUnits}, 0, 3);
    const at::Tensor weight =
        piece_of(waves({kUnits, kFeatures}, 0.11), piece).contiguous().requires_grad_();
    const at::Tensor bias = piece_of(waves({kUnits}, 0.5), of_bias).contiguous().requires_grad_();
    const at::Tensor x = waves({48, kFeatures}, 0.01).requires_grad_();
    const Blocks y = detail::column_products(group, copy_to(group, x), {weight, bias, kUnits, 3},
                                             nn::Activation::relu);
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& block : y) loss = loss + block.square().sum();
    loss.backward();
    return Of{y, x.grad(), weight.grad(), bias.grad()};
  };
  const Of one = on_tensor_ranks(1, 2, run)[0];
  const auto two = on_tensor_ranks(2, 2, run);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(at::equal(two[rank].y[0], one.y[rank]));
    EXPECT_TRUE(at::equal(two[rank].dx, one.dx));
    const Piece piece{.whole = {kUnits, kFeatures},
                      .begin = static_cast<int64_t>(rank) * 65,
                      .size = 65,
                      .stacked = 3};
    EXPECT_TRUE(at::equal(two[rank].dweight, piece_of(one.dweight, piece)));
    Piece of_bias = piece;
    of_bias.whole = {kUnits};
    EXPECT_TRUE(at::equal(two[rank].dbias, piece_of(one.dbias, of_bias)));
  }
}

/// Of the square of the norm of dloss / dx, as penalties of gradients have it.
Tensors second_derivatives(const Tensors& of, const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor dx = torch::autograd::grad({y.square().sum()}, {x}, {}, true, true)[0];
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : of) parameters.push_back(parameter);
  const auto gradients =
      torch::autograd::grad({dx.square().sum()}, parameters, {}, {}, false, /*allow_unused=*/true);
  Tensors result;
  size_t next = 0;
  for (const auto& [name, parameter] : of) result[name] = gradients[next++];
  return result;
}

TEST(BlockProducts, SecondDerivativesAreThoseOfPlainTorch) {
  const Mlp mlp(TensorGroup(3), 40, 130);
  const at::Tensor x = waves({160, 40}, 0.01).requires_grad_();
  const Tensors got = second_derivatives(mlp.parameters, x, mlp(x));
  for (const auto& [name, expected] :
       second_derivatives(mlp.parameters, x, plain_mlp(mlp.parameters, x))) {
    ASSERT_EQ(got.at(name).defined(), expected.defined()) << name;
    if (!expected.defined()) continue;
    EXPECT_LE((got.at(name) - expected).norm().item<float>(), 1e-4 * expected.norm().item<float>())
        << name;
  }
}

TEST(BlockProducts, WhatNeedsNoGradientGetsNone) {
  Mlp mlp(TensorGroup(2), 40, 130);
  const at::Tensor x = waves({160, 40}, 0.01).requires_grad_();
  mlp(x).sum().backward();
  const at::Tensor expected = x.grad().clone();
  const at::Tensor bias = mlp.parameters["up.bias"].grad().clone();
  x.mutable_grad().reset();
  for (auto& [name, parameter] : mlp.parameters) parameter.mutable_grad().reset();
  mlp.parameters["up.weight"].set_requires_grad(false);
  mlp.parameters["down.weight"].set_requires_grad(false);
  mlp(x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), expected));
  EXPECT_TRUE(at::equal(mlp.parameters["up.bias"].grad(), bias));
  EXPECT_FALSE(mlp.parameters["up.weight"].grad().defined());
  EXPECT_FALSE(mlp.parameters["down.weight"].grad().defined());
}

/// One layer of rows, of a whole x.
at::Tensor rows_of(const TensorGroup& group, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& bias) {
  const Blocks products = detail::row_products(group, part_of(group, x), weight, x.size(-1));
  return detail::row_sum(group, products, bias);
}

// As torch says it of a whole layer, although backward reads a copy.
TEST(BlockProducts, AWriteBetweenForwardAndBackwardIsAnError) {
  for (const int blocks : {1, 2}) {
    const at::Tensor weight = drawn({40, 130}, 1, 130).requires_grad_();
    const at::Tensor x = waves({160, 130}, 0.01).requires_grad_();
    const at::Tensor y = rows_of(TensorGroup(blocks), x, weight, at::zeros({40}));
    {
      const torch::NoGradGuard no_grad;
      weight.mul_(2);
    }
    EXPECT_THROW(y.sum().backward(), c10::Error) << blocks;
  }
}

TEST(BlockProducts, OtherTypesAreThoseOfTorch) {
  const at::Tensor weight = drawn({40, 130}, 1, 130).to(at::kDouble).requires_grad_();
  const at::Tensor bias = drawn({40}, 2, 130).to(at::kDouble);
  const at::Tensor x = waves({16, 130}, 0.01).to(at::kDouble);
  const at::Tensor y = rows_of(TensorGroup(2), x, weight, bias);
  EXPECT_TRUE(at::allclose(y, torch::linear(x, weight, bias)));
  wave_loss(y).backward();
  EXPECT_TRUE(at::allclose(weight.grad(), (waves({16, 40}, 0.3) + 2).to(at::kDouble).t().mm(x)));
}

TEST(BlockProducts, BiasOfRowsIsAddedOnce) {
  for (const at::Tensor& y : on_tensor_ranks(2, 4, [](const TensorGroup& group) {
         const Piece own = detail::piece_along(group, "rows", {3, 8}, 1);
         return rows_of(group, at::zeros({5, 8}), at::ones(own.shape()), at::full({3}, 2));
       }))
    EXPECT_TRUE(at::equal(y, at::full({5, 3}, 2)));
}

TEST(BlockProducts, TokensThatAreNoWordsAreNamed) {
  const TensorGroup two(2);
  const auto look_up = [&](const at::Tensor& tokens) {
    detail::looked_up(two, tokens, at::zeros({65, 8}), 65);
  };
  EXPECT_THAT(
      message_of<DataError>([&] { look_up(torch::tensor({3, 65}, at::kLong)); }),
      HasSubstr(
          "embedding in blocks: row 1 of the batch has token 65 (position 0), expected 0 to 64"));
  EXPECT_THAT(message_of<DataError>([&] { look_up(torch::tensor({-1}, at::kInt)); }),
              HasSubstr("row 0 of the batch has token -1"));
  EXPECT_THAT(message_of<UsageError>([&] { look_up(at::ones({2})); }),
              HasSubstr("embedding in blocks: got CPUFloatType"));
}

}  // namespace
}  // namespace tutti::parallel
