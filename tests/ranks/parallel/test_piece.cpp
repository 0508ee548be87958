// Initial values: pieces are those of the whole, numbers are what they were, distributions fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/parallel/tensor/piece.h"

namespace tutti::parallel {
namespace {

constexpr Distribution kUniform{Distribution::Kind::uniform, 0.5};
constexpr Distribution kNormal{Distribution::Kind::normal, 2};

at::Tensor drawn(const Piece& piece, const Distribution& values, at::ScalarType type = at::kFloat,
                 uint64_t key = parameter_key(1, "mlp.up.weight")) {
  const at::Tensor parameter = at::empty(piece.shape(), type);
  fill_initial(parameter, piece, key, values);
  return parameter;
}

TEST(Pieces, HaveTheValuesOfTheWholeParameter) {
  struct Case {
    std::vector<int64_t> whole;
    int64_t axis;
    int64_t stacked;
  };
  const Case cases[] = {
      {{13}, 0, 1}, {{7, 5}, 0, 1}, {{7, 5}, 1, 1}, {{12, 5}, 0, 3}, {{3, 8, 5}, 1, 2}};
  for (const auto& [shape, axis, stacked] : cases) {
    const int64_t length = shape[static_cast<size_t>(axis)] / stacked;
    const Piece all{.whole = shape, .axis = axis, .size = length, .stacked = stacked};
    for (const Distribution& values : {kUniform, kNormal}) {
      const at::Tensor whole = drawn(all, values);
      EXPECT_EQ(whole.sizes(), at::IntArrayRef(shape));
      for (int64_t begin = 0; begin < length; ++begin)
        for (int64_t size = 1; begin + size <= length; ++size) {
          Piece piece = all;
          piece.begin = begin;
          piece.size = size;
          EXPECT_TRUE(at::equal(drawn(piece, values), piece_of(whole, piece)));
        }
    }
  }
}

TEST(Pieces, OfStackedPartsAreCutFromEach) {
  const at::Tensor whole = at::arange(12).view({6, 2});
  const Piece piece{.whole = {6, 2}, .axis = 0, .begin = 1, .size = 1, .stacked = 3};
  EXPECT_TRUE(at::equal(piece_of(whole, piece), at::tensor({2, 3, 6, 7, 10, 11}).view({3, 2})));
}

// What a second program gives, in Python.
TEST(InitialValues, AreAPromise) {
  EXPECT_EQ(parameter_key(1, "mlp.up.weight"), 13241863095167750299U);
  const Piece five{.whole = {5}, .size = 5};
  const double uniform[] = {-0.5049696685746312, 0.8336229752749205, -0.15407835645601153,
                            0.7467242195270956, -0.4827332026325166};
  const double normal[] = {-0.20414495468139648, 0.6931838989257812, 1.712984561920166,
                           0.15915822982788086, 0.1375880241394043};
  const at::Tensor got = drawn(five, {Distribution::Kind::uniform, 1}, at::kDouble);
  const at::Tensor got_normal = drawn(five, {Distribution::Kind::normal, 1}, at::kDouble);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(got[i].item<double>(), uniform[i]);
    EXPECT_EQ(got_normal[i].item<double>(), normal[i]);
  }
}

TEST(InitialValues, AreOfTheirDistributions) {
  const Piece many{.whole = {400, 250}, .size = 400};
  const at::Tensor uniform = drawn(many, kUniform, at::kDouble);
  EXPECT_LE(uniform.abs().max().item<double>(), 0.5);
  EXPECT_GT(uniform.abs().max().item<double>(), 0.4999);
  EXPECT_NEAR(uniform.mean().item<double>(), 0, 5 * 0.29 / 316);  // five standard errors
  EXPECT_NEAR(uniform.var().item<double>(), 1.0 / 12, 2e-3);
  const at::Tensor normal = drawn(many, kNormal, at::kDouble);
  EXPECT_NEAR(normal.mean().item<double>(), 0, 5 * 2.0 / 316);
  EXPECT_NEAR(normal.std().item<double>(), 2, 5 * 2.0 / 447);
  EXPECT_NEAR((normal.abs() < 2).to(at::kDouble).mean().item<double>(), 0.683, 0.008);
  EXPECT_EQ(drawn(many, {}).abs().sum().item<float>(), 0);
}

TEST(InitialValues, OfOtherNamesSeedsAndElementsAreOthers) {
  const Piece hundred{.whole = {100}, .size = 100};
  std::vector<at::Tensor> all;
  for (const uint64_t key : {parameter_key(1, "a"), parameter_key(2, "a"), parameter_key(1, "b"),
                             parameter_key(1, ""), parameter_key(1, "a.a.a.a.a")})
    all.push_back(drawn(hundred, kUniform, at::kDouble, key));
  const at::Tensor values = at::cat(all);
  EXPECT_EQ(std::get<0>(at::_unique(values)).numel(), values.numel());
  EXPECT_TRUE(at::equal(drawn(hundred, kUniform, at::kDouble).to(at::kFloat),
                        drawn(hundred, kUniform, at::kFloat)))
      << "one number, rounded to the parameter's dtype";
}

}  // namespace
}  // namespace tutti::parallel
