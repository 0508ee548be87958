// Functions between whole tensors and blocks: gradients against finite differences on 1 to 3 ranks,
// the same bits for any number of ranks, disagreements and deaths named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/parallel/tensor/tensor_functions.h"

#include "tests/support/tensor_ranks.h"

namespace tutti::parallel {
namespace {

using test::errors_of_tensor_ranks;
using test::on_tensor_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

at::Tensor numbers_like(at::IntArrayRef shape, int seed, at::ScalarType type = at::kDouble) {
  const at::Tensor values = at::arange(c10::multiply_integers(shape), at::kDouble);
  return ((values + 1.7 * seed + 0.3) * 1.3).sin().view(shape).to(type);
}

/// One of the functions, from inputs to outputs that are both seen as Blocks; a whole tensor is one
/// of each.
struct FunctionCase {
  std::string name;
  bool takes_whole;
  bool gives_whole;
  /// Of the whole input, or of block `block` of `blocks`.
  std::function<std::vector<int64_t>(int block, int blocks)> shape;
  std::function<Blocks(const TensorGroup&, const Blocks&)> call;

  friend std::ostream& operator<<(std::ostream& out, const FunctionCase& one) {
    return out << one.name;
  }
};

std::vector<FunctionCase> function_cases() {
  const auto alike = [](int, int) { return std::vector<int64_t>{2, 7}; };
  // 7 of 3 blocks: 3, 2, 2.
  const auto uneven = [](int block, int blocks) {
    return std::vector<int64_t>{2, 7 / blocks + (block < 7 % blocks)};
  };
  const auto uneven_rows = [](int block, int blocks) {
    return std::vector<int64_t>{7 / blocks + (block < 7 % blocks), 2};
  };
  return {
      {"copy_to", true, false, alike, [](auto& g, auto& in) { return copy_to(g, in[0]); }},
      {"sum_of", false, true, alike, [](auto& g, auto& in) { return Blocks{sum_of(g, in)}; }},
      {"part_of", true, false, alike, [](auto& g, auto& in) { return part_of(g, in[0]); }},
      {"part_of_rows", true, false, [](int, int) { return std::vector<int64_t>{7, 2}; },
       [](auto& g, auto& in) { return part_of(g, in[0], 0); }},
      {"whole_of", false, true, uneven, [](auto& g, auto& in) { return Blocks{whole_of(g, in)}; }},
      {"whole_of_rows", false, true, uneven_rows,
       [](auto& g, auto& in) { return Blocks{whole_of(g, in, 0)}; }},
      {"sequence_all_gather", false, false, uneven,
       [](auto& g, auto& in) { return sequence_all_gather(g, in, 1); }},
      {"sequence_reduce_scatter", false, false, alike,
       [](auto& g, auto& in) { return sequence_reduce_scatter(g, in, -1); }},
  };
}

/// All inputs: one, or one a block.
Blocks inputs_of(const FunctionCase& one, int blocks, at::ScalarType type = at::kDouble) {
  Blocks all;
  for (int block = 0; block < (one.takes_whole ? 1 : blocks); ++block)
    all.push_back(numbers_like(one.shape(block, blocks), block, type));
  return all;
}

/// This rank's, as leaves.
Blocks leaves_of(const FunctionCase& one, const TensorGroup& group, const Blocks& all) {
  Blocks own;
  const int first = one.takes_whole ? 0 : group.first_block();
  for (int i = first; i < (one.takes_whole ? 1 : first + group.local_blocks()); ++i)
    own.push_back(all[static_cast<size_t>(i)].clone().requires_grad_());
  return own;
}

/// This rank's loss: one that is whole, or its blocks' share; another function of each block.
at::Tensor loss_of(const FunctionCase& one, const TensorGroup& group, const Blocks& own) {
  at::Tensor loss;
  int block = one.gives_whole ? 0 : group.first_block();
  for (const at::Tensor& y : one.call(group, own)) {
    const at::Tensor factors = at::arange(1, y.numel() + 1, y.options()).view(y.sizes());
    const at::Tensor part = (y * (factors + 0.5 * block++) * 0.3).sin().sum();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

using RankLoss = std::function<at::Tensor(const FunctionCase&, const TensorGroup&, const Blocks&)>;

/// The one loss that the ranks have together.
double loss_of_ranks(const FunctionCase& one, int ranks, const Blocks& all, const RankLoss& loss) {
  const int blocks = one.takes_whole ? 3 : static_cast<int>(all.size());
  const auto losses = on_tensor_ranks(ranks, blocks, [&](const TensorGroup& group) {
    return loss(one, group, leaves_of(one, group, all)).item<double>();
  });
  double sum = 0;
  for (const double value : losses) sum += value;
  return one.gives_whole ? losses[0] : sum;
}

/// Gradients of all inputs, as their ranks have them; of whole ones each rank's, compared.
Blocks gradients_of_ranks(const FunctionCase& one, int ranks, const Blocks& all, int blocks,
                          const RankLoss& loss) {
  const auto by_rank = on_tensor_ranks(ranks, blocks, [&](const TensorGroup& group) {
    const Blocks own = leaves_of(one, group, all);
    loss(one, group, own).backward();
    Blocks gradients;
    for (const at::Tensor& x : own) gradients.push_back(x.grad());
    return gradients;
  });
  Blocks gradients;
  for (const Blocks& rank : by_rank) {
    EXPECT_TRUE(!one.takes_whole || at::equal(rank[0], by_rank[0][0])) << one.name;
    if (!one.takes_whole || gradients.empty())
      gradients.insert(gradients.end(), rank.begin(), rank.end());
  }
  return gradients;
}

void expect_finite_differences(const FunctionCase& one, int ranks, const RankLoss& loss) {
  constexpr double kStep = 1e-5;  // error about kStep^2, and 1e-16 / kStep of rounding
  const Blocks all = inputs_of(one, 3);
  const Blocks got = gradients_of_ranks(one, ranks, all, 3, loss);
  ASSERT_EQ(got.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i)
    for (int64_t place = 0; place < all[i].numel(); ++place) {
      const auto moved = [&](double change) {
        Blocks other = all;
        other[i] = all[i].clone();
        other[i].view(-1)[place] += change;
        return loss_of_ranks(one, ranks, other, loss);
      };
      const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      EXPECT_NEAR(got[i].view(-1)[place].item<double>(), slope, 1e-8 * (1 + std::abs(slope)))
          << one.name << ", tensor " << i << ", element " << place;
    }
}

class TensorFunctions : public ::testing::TestWithParam<FunctionCase> {};

TEST_P(TensorFunctions, GradientsAreThoseOfFiniteDifferences) {
  for (int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    expect_finite_differences(GetParam(), ranks, loss_of);
  }
}

// L = |dL'/dx|^2, of each input once: its gradient needs the derivative of each backward.
TEST_P(TensorFunctions, SecondDerivativesToo) {
  const RankLoss squared = [](const FunctionCase& one, const TensorGroup& group,
                              const Blocks& own) {
    const at::Tensor inner = loss_of(one, group, own);
    at::Tensor sum;
    for (const at::Tensor& gradient : torch::autograd::grad({inner}, own, {}, true, true)) {
      const at::Tensor part = gradient.pow(2).sum();
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  };
  // What is whole is one loss again where the gradient is whole.
  FunctionCase one = GetParam();
  one.gives_whole = one.takes_whole;
  const FunctionCase inner = GetParam();
  expect_finite_differences(one, 2,
                            [&](const FunctionCase&, const TensorGroup& g, const Blocks& own) {
                              return squared(inner, g, own);
                            });
}

TEST_P(TensorFunctions, AnyNumberOfRanksHasTheSameBits) {
  const FunctionCase& one = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int blocks : {4, 6}) {
      const Blocks all = inputs_of(one, blocks, type);
      const auto outputs = [&](int ranks) {
        Blocks gathered;
        for (const Blocks& rank : on_tensor_ranks(ranks, blocks, [&](const TensorGroup& group) {
               return one.call(group, leaves_of(one, group, all));
             }))
          if (!one.gives_whole || gathered.empty())
            gathered.insert(gathered.end(), rank.begin(), rank.end());
        return gathered;
      };
      const Blocks expected = outputs(1);
      const Blocks gradients = gradients_of_ranks(one, 1, all, blocks, loss_of);
      for (int ranks = 2; ranks <= blocks; ++ranks) {
        SCOPED_TRACE(std::to_string(blocks) + " blocks on " + std::to_string(ranks));
        const Blocks got = outputs(ranks);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i]));
        const Blocks others = gradients_of_ranks(one, ranks, all, blocks, loss_of);
        for (size_t i = 0; i < others.size(); ++i) EXPECT_TRUE(at::equal(others[i], gradients[i]));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(All, TensorFunctions, ::testing::ValuesIn(function_cases()),
                         [](const auto& info) { return info.param.name; });

// ---- values ----

TEST(TensorValues, SumsAreThoseOfTheTree) {
  Blocks all;
  for (int block = 0; block < 6; ++block) all.push_back(numbers_like({50}, block, at::kFloat) / 3);
  const at::Tensor expected = ((all[0] + all[1]) + (all[2] + all[3])) + (all[4] + all[5]);
  EXPECT_FALSE(at::equal(expected, at::stack(all).sum(0))) << "the order can be seen";
  for (const int ranks : {1, 2, 3, 4, 6})
    for (const at::Tensor& sum : on_tensor_ranks(ranks, 6, [&](const TensorGroup& group) {
           const auto begin = all.begin() + group.first_block();
           return sum_of(group, Blocks(begin, begin + group.local_blocks()));
         }))
      EXPECT_TRUE(at::equal(sum, expected)) << ranks;
}

TEST(TensorValues, PartsAreUnevenWhereTheyMustBe) {
  const at::Tensor x = numbers_like({3, 65}, 1);
  const auto parts = on_tensor_ranks(2, 2, [&](const TensorGroup& g) { return part_of(g, x); });
  EXPECT_TRUE(at::equal(parts[0][0], x.narrow(1, 0, 33)));
  EXPECT_TRUE(at::equal(parts[1][0], x.narrow(1, 33, 32)));
  EXPECT_TRUE(parts[1][0].is_contiguous());
}

// Products depend on it on some processors.
TEST(TensorValues, PartsBeginOnA64ByteLine) {
  const TensorGroup group(3);
  for (const int64_t axis : {0, 1})
    for (const at::Tensor& part : part_of(group, numbers_like({7, 5}, 1), axis))
      EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data_ptr()) % 64, 0);
}

TEST(TensorValues, InputsStayAsTheyAre) {
  on_tensor_ranks(2, 2, [&](const TensorGroup& group) {
    const at::Tensor x = numbers_like({4, 2}, group.rank());
    sum_of(group, {x});
    sequence_reduce_scatter(group, {x}, 0);
    whole_of(group, {x}, 0);
    EXPECT_TRUE(at::equal(x, numbers_like({4, 2}, group.rank())));
    return 0;
  });
}

// ---- disagreements, deaths ----

template <class Body>
std::vector<std::string> errors(int ranks, const Body& body) {
  return errors_of_tensor_ranks(ranks, ranks, body);
}

TEST(TensorErrors, UnlikeCallsNameTheRankOnAllRanks) {
  EXPECT_THAT(errors(3, [](const TensorGroup& g) { sum_of(g, {at::ones({2, 1 + g.rank() / 2})}); }),
              Each(AllOf(HasSubstr("Mismatch: sum_of: rank 2 of 3 calls sum_of of Float [2, 2]"),
                         HasSubstr("rank 0 calls sum_of of Float [2, 1]"))));
  EXPECT_THAT(errors(2,
                     [](const TensorGroup& g) {
                       sum_of(g, {at::ones({2}, g.rank() == 0 ? at::kFloat : at::kDouble)});
                     }),
              Each(HasSubstr("rank 1 of 2 calls sum_of of Double [2]")));
  EXPECT_THAT(errors(2,
                     [](const TensorGroup& g) {
                       g.rank() == 0 ? copy_to(g, at::ones({2})) : part_of(g, at::ones({2}), 0);
                     }),
              Each(AllOf(HasSubstr("rank 1 of 2 calls part_of of Float [2] along axis 0"),
                         HasSubstr("rank 0 calls copy_to of Float [2]"))));
  EXPECT_THAT(
      errors(2,
             [](const TensorGroup& g) { copy_to(g, at::ones({2}).requires_grad_(g.rank() == 0)); }),
      Each(HasSubstr("copy_to: rank 1 of 2 needs no gradient, rank 0 does")));
}

TEST(TensorErrors, PartsThatAreNotTheRanksOwnNameIt) {
  EXPECT_THAT(errors(2, [](const TensorGroup& g) { whole_of(g, {at::ones({2, 1 + g.rank()})}); }),
              Each(AllOf(HasSubstr("Mismatch: whole_of: rank 0 of 2 has parts of [1] along axis 1"),
                         HasSubstr("expected [2] of 3 on 2 blocks"))));
}

TEST(TensorErrors, WrongArguments) {
  const auto one = [](auto call) {
    return errors(1, [call](const TensorGroup& group) { call(group); })[0];
  };
  const auto two = [](auto call) {
    return errors_of_tensor_ranks(1, 2, [call](const TensorGroup& group) { call(group); })[0];
  };
  EXPECT_THAT(one([](auto& g) { part_of(g, at::ones({2}), 1); }),
              HasSubstr("UsageError: part_of: axis is 1, the tensor has 1 dimensions"));
  EXPECT_THAT(one([](auto& g) { copy_to(g, at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(one([](auto& g) { sum_of(g, {}); }),
              HasSubstr("got 0 blocks, rank 0 of 1 has 1 of 1"));
  EXPECT_THAT(two([](auto& g) { part_of(g, at::ones({1}), 0); }),
              HasSubstr("1 elements along axis 0, expected one a block or more: 2"));
  EXPECT_THAT(two([](auto& g) { sum_of(g, {at::ones({2}), at::ones({3})}); }),
              HasSubstr("a block is Float [3], the first is Float [2]"));
  EXPECT_THAT(two([](auto& g) { whole_of(g, {at::ones({2}), at::ones({3})}); }),
              HasSubstr("rank 0 of 1 has parts of [2, 3] along axis 0, expected [3, 2] of 5"));
}

TEST(TensorErrors, GroupsOfUnlikeOrTooFewBlocks) {
  const auto thrown = test::run_members(make_shm_threads(2), [](const Group& group) {
    const TensorGroup unlike(group, 2 + 2 * group.rank());
  });
  for (const auto& one : thrown)
    EXPECT_THAT(test::words_of(one),
                HasSubstr("Mismatch: TensorGroup: rank 1 of 2 has 4 blocks, rank 0 has 2"));
  EXPECT_THAT(errors_of_tensor_ranks(3, 2, [](const TensorGroup&) {}),
              Each(HasSubstr("UsageError: TensorGroup: 2 blocks on 3 ranks")));
  EXPECT_THROW(TensorGroup(0), UsageError);
}

// A rank that does not come to forward, or to backward.
TEST(TensorErrors, WhoDoesNotComeIsNamedWithinTheLimit) {
  constexpr Millis kLimit{1500};  // of the calls to which all come, too
  const auto without_forward = errors_of_tensor_ranks(
      3, 3,
      [](const TensorGroup& group) {
        if (group.rank() != 1) sum_of(group, {at::ones({2})});
      },
      kLimit);
  const auto without_backward = errors_of_tensor_ranks(
      3, 3,
      [](const TensorGroup& group) {
        const at::Tensor x = at::ones({2}).requires_grad_();
        const at::Tensor y = copy_to(group, x)[0].sum();
        if (group.rank() != 1) y.backward();
      },
      kLimit);
  for (const int rank : {0, 2})
    for (const auto& errors : {without_forward, without_backward})
      EXPECT_THAT(errors[static_cast<size_t>(rank)],
                  AllOf(HasSubstr("rank 1"), ::testing::ContainsRegex("PeerLost|Timeout")));
}

TEST(TensorErrors, WhoGivesUpIsNamedAtOnce) {
  const auto words = errors(3, [](const TensorGroup& group) {
    if (group.rank() == 1) group.group().abort("its samples ran out");
    sum_of(group, {at::ones({2})});
  });
  for (const int rank : {0, 2})
    EXPECT_THAT(words[static_cast<size_t>(rank)], AllOf(HasSubstr("PeerLost"), HasSubstr("rank 1"),
                                                        HasSubstr("its samples ran out")));
}

}  // namespace
}  // namespace tutti::parallel
