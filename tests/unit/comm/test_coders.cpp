// Compressed sums: against slow oracles, over threads and for replicas that take turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tutti/comm/compression/coder.h"
#include "tutti/comm/compression/coders.h"

#include "tests/support/comm.h"
#include "tests/support/reduce_oracle.h"
#include "tests/unit/comm/compression_support.h"

namespace tutti {
namespace {

using detail::Exchange;
using test::CodedBucket;
using test::Floats;
using test::gradient_of;
using Kind = Compression::Kind;
using Matrices = std::vector<std::pair<int64_t, int64_t>>;

const Matrices kMatrices = {{24, 50}, {1, 1100}, {7, 300}};
constexpr int kSteps = 6;

int64_t elements_of(const Matrices& matrices) {
  int64_t n = 0;
  for (const auto& [rows, columns] : matrices) n += rows * columns;
  return n;
}

Compression of(const char* text) {
  Compression compression = compression_from(text);
  compression.min_elements = 1;
  return compression;
}

const char* const kWithFeedback[] = {"topk:0.03", "onebit", "powersgd:2"};
const char* const kAll[] = {"bf16", "fp16", "topk:0.03", "onebit", "powersgd:2"};

// The sums of kSteps steps of replicas that take turns.
std::vector<Floats> sums_in_turn(const Compression& compression, const ReductionShape& shape,
                                 bool renew = false) {
  auto replicas = test::make_replicas(compression, kMatrices, shape);
  std::vector<Floats> sums;
  for (int step = 0; step < kSteps; ++step) {
    for (int r = 0; r < shape.replicas(); ++r) {
      if (renew && step == 3) replicas[r]->renew(compression, shape);
      const Floats values = gradient_of(elements_of(kMatrices), 1, r, step);
      std::copy(values.begin(), values.end(), replicas[r]->values.begin());
    }
    test::sum_in_turn(replicas, shape);
    for (const auto& replica : replicas) EXPECT_EQ(replica->values, replicas[0]->values);
    sums.push_back(replicas[0]->values);
  }
  return sums;
}

// ---- slow oracles ----

// What one replica sends, and what it keeps.
struct Sent {
  Floats values;
  Floats left;
};

Sent top_k_slowly(const Floats& x, size_t k) {
  std::vector<size_t> order(x.size());
  for (size_t i = 0; i < x.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  Sent sent{Floats(x.size(), 0.0f), x};
  for (size_t i = 0; i < k; ++i) std::swap(sent.values[order[i]], sent.left[order[i]]);
  return sent;
}

Sent one_bit_slowly(const Floats& x) {
  Sent sent{x, x};
  for (size_t begin = 0; begin < x.size(); begin += 256) {
    const size_t end = std::min(begin + 256, x.size());
    float lanes[16] = {};
    for (size_t i = begin; i < end; ++i) lanes[(i - begin) % 16] += std::fabs(x[i]);
    for (int width : {8, 4, 2, 1})
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    const float scale = lanes[0] / static_cast<float>(end - begin);
    for (size_t i = begin; i < end; ++i) {
      sent.values[i] = std::signbit(x[i]) ? -scale : scale;
      sent.left[i] = x[i] - sent.values[i];
    }
  }
  return sent;
}

Floats narrow_slowly(const std::vector<Floats>& inputs, const ReductionShape& shape, int bits) {
  std::vector<test::Bytes> stored;
  for (const Floats& input : inputs) {
    stored.emplace_back(2 * input.size());
    for (size_t i = 0; i < input.size(); ++i) {
      const uint16_t narrow = test::nearest_16(input[i], bits);
      std::memcpy(stored.back().data() + 2 * i, &narrow, 2);
    }
  }
  const auto sum =
      test::oracle(bits == 8 ? DType::bfloat16 : DType::float16, ReduceOp::sum, shape, stored);
  Floats values(inputs[0].size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t narrow;
    std::memcpy(&narrow, sum.data() + 2 * i, 2);
    values[i] = static_cast<float>(test::value_of_16(narrow, bits));
  }
  return values;
}

Floats sum_slowly(const std::vector<Floats>& inputs, const ReductionShape& shape) {
  Floats sum(inputs[0].size());
  for (size_t i = 0; i < sum.size(); ++i) {
    Floats leaves;
    for (const Floats& input : inputs) leaves.push_back(input[i]);
    sum[i] = test::oracle_shape(ReduceOp::sum, shape, leaves);
  }
  return sum;
}

// Calls `part` on what each matrix covers of a bucket.
template <class Fn>
void for_each_matrix(const Matrices& matrices, Fn part) {
  int64_t begin = 0;
  for (const auto& [rows, columns] : matrices) {
    part(begin, begin + rows * columns);
    begin += rows * columns;
  }
}

std::vector<Floats> sums_slowly(const Compression& compression, const ReductionShape& shape) {
  const auto n = static_cast<size_t>(elements_of(kMatrices));
  std::vector<Floats> left(shape.replicas(), Floats(n, 0.0f)), sums;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Floats> inputs;
    for (int r = 0; r < shape.replicas(); ++r)
      inputs.push_back(gradient_of(elements_of(kMatrices), 1, r, step));
    if (compression.kind == Kind::bfloat16 || compression.kind == Kind::float16) {
      sums.push_back(narrow_slowly(inputs, shape, compression.kind == Kind::bfloat16 ? 8 : 5));
      continue;
    }
    for (int r = 0; r < shape.replicas(); ++r) {
      for (size_t i = 0; i < n; ++i) inputs[r][i] = left[r][i] + inputs[r][i];
      for_each_matrix(kMatrices, [&](int64_t begin, int64_t end) {
        const Floats x(inputs[r].begin() + begin, inputs[r].begin() + end);
        const auto k =
            static_cast<size_t>(std::ceil(compression.ratio * static_cast<double>(x.size())));
        const Sent sent = compression.kind == Kind::top_k ? top_k_slowly(x, k) : one_bit_slowly(x);
        std::copy(sent.values.begin(), sent.values.end(), inputs[r].begin() + begin);
        std::copy(sent.left.begin(), sent.left.end(), left[r].begin() + begin);
      });
    }
    sums.push_back(sum_slowly(inputs, shape));
  }
  return sums;
}

TEST(Coders, EqualTheSlowOracleBitForBit) {
  for (const char* text : {"bf16", "fp16", "topk:0.03", "topk:1", "onebit"})
    for (const char* shape : {"1", "2", "3", "4", "5", "2x3"})
      EXPECT_EQ(sums_in_turn(of(text), ReductionShape::parse(shape)),
                sums_slowly(of(text), ReductionShape::parse(shape)))
          << text << " of " << shape;
}

// In double, with matrices that are products of two thin ones: nothing may be left out.
TEST(PowerSgd, FindsAMatrixOfItsRankInOneStep) {
  const Matrices matrices = {{30, 80}};
  const auto shape = ReductionShape::flat(3);
  auto replicas = test::make_replicas(of("powersgd:2"), matrices, shape);
  // The same two directions on every replica: the sum has rank 2.
  const Floats columns = gradient_of(30 * 2, 4, 0, 0), rows = gradient_of(80 * 2, 5, 0, 0);
  std::vector<double> expected(30 * 80, 0.0);
  for (int r = 0; r < 3; ++r) {
    const Floats weights = gradient_of(2, 6, r, 0);
    for (int i = 0; i < 30; ++i)
      for (int j = 0; j < 80; ++j) {
        float sum = 0;
        for (int k = 0; k < 2; ++k)
          sum += columns[2 * i + k] * rows[2 * j + k] * (weights[k] + 0.1f) * 1000;
        replicas[r]->values[80 * i + j] = sum;
        expected[80 * i + j] += sum;
      }
  }
  test::sum_in_turn(replicas, shape);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(replicas[0]->values[i], expected[i], 1e-4) << i;
}

// Against the formulas of the paper in double, from the same first factor.
TEST(PowerSgd, FollowsThePaper) {
  constexpr int kRows = 20, kColumns = 64, kRank = 3, kReplicas = 2;
  const auto shape = ReductionShape::flat(kReplicas);
  const Compression compression{.kind = Kind::power_sgd, .rank = kRank};
  auto replicas = test::make_replicas(compression, {{kRows, kColumns}}, shape);
  using Matrix = std::vector<std::vector<double>>;
  const auto times = [](const Matrix& a, const Matrix& b) {
    Matrix c(a.size(), std::vector<double>(b[0].size(), 0.0));
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t k = 0; k < b.size(); ++k)
        for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    return c;
  };
  const auto transposed = [](const Matrix& a) {
    Matrix t(a[0].size(), std::vector<double>(a.size()));
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
    return t;
  };
  const auto orthonormal = [&](Matrix a) {  // columns
    a = transposed(a);
    for (size_t k = 0; k < a.size(); ++k) {
      for (size_t j = 0; j < k; ++j) {
        double along = 0;
        for (size_t i = 0; i < a[k].size(); ++i) along += a[j][i] * a[k][i];
        for (size_t i = 0; i < a[k].size(); ++i) a[k][i] -= along * a[j][i];
      }
      double length = 0;
      for (double value : a[k]) length += value * value;
      for (double& value : a[k]) value /= std::sqrt(length);
    }
    return transposed(a);
  };
  Matrix factor;  // kColumns x kRank
  std::vector<Matrix> left(kReplicas, Matrix(kRows, std::vector<double>(kColumns, 0.0)));
  for (int step = 0; step < 4; ++step) {
    std::vector<Matrix> gradients = left;
    for (int r = 0; r < kReplicas; ++r) {
      const Floats values = gradient_of(kRows * kColumns, 9, r, step);
      std::copy(values.begin(), values.end(), replicas[r]->values.begin());
      for (int i = 0; i < kRows * kColumns; ++i)
        gradients[r][i / kColumns][i % kColumns] += values[i];
    }
    if (step == 0) {  // begin() makes it; the gradients are put back afterwards
      replicas[0]->coder->begin(replicas[0]->all_used());
      const auto first = replicas[0]->states[0].factor.as<float>();
      factor.assign(kColumns, std::vector<double>(kRank));
      for (int k = 0; k < kRank; ++k)
        for (int j = 0; j < kColumns; ++j) factor[j][k] = first[k * kColumns + j];
    }
    test::sum_in_turn(replicas, shape);
    Matrix p = times(gradients[0], factor);
    const Matrix other = times(gradients[1], factor);
    for (int i = 0; i < kRows; ++i)
      for (int k = 0; k < kRank; ++k) p[i][k] += other[i][k];
    p = orthonormal(p);
    Matrix sum(kColumns, std::vector<double>(kRank, 0.0));
    for (int r = 0; r < kReplicas; ++r) {
      const Matrix q = times(transposed(gradients[r]), p);
      const Matrix sent = times(p, transposed(q));
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kColumns; ++j) left[r][i][j] = gradients[r][i][j] - sent[i][j];
      for (int j = 0; j < kColumns; ++j)
        for (int k = 0; k < kRank; ++k) sum[j][k] += q[j][k];
    }
    factor = sum;
    const Matrix expected = times(p, transposed(sum));
    for (int i = 0; i < kRows * kColumns; ++i)
      ASSERT_NEAR(replicas[0]->values[i], expected[i / kColumns][i % kColumns], 2e-5)
          << "step " << step << ", element " << i;
  }
}

// ---- error feedback ----

// Over all steps and replicas: what was sent and what is kept is what was given.
TEST(ErrorFeedback, LosesNothing) {
  for (const char* text : kWithFeedback)
    for (int n : {1, 2, 3, 5}) {
      const auto shape = ReductionShape::flat(n);
      auto replicas = test::make_replicas(of(text), kMatrices, shape);
      std::vector<double> given(elements_of(kMatrices), 0.0), arrived = given;
      for (int step = 0; step < 20; ++step) {
        for (int r = 0; r < n; ++r) {
          const Floats values = gradient_of(elements_of(kMatrices), 2, r, step);
          std::copy(values.begin(), values.end(), replicas[r]->values.begin());
          for (size_t i = 0; i < given.size(); ++i) given[i] += values[i];
        }
        test::sum_in_turn(replicas, shape);
        for (size_t i = 0; i < arrived.size(); ++i) arrived[i] += replicas[0]->values[i];
      }
      double kept = 0;
      for (int r = 0; r < n; ++r) {
        size_t at = 0;
        for (auto& state : replicas[r]->states)
          for (float value : state.residual.as<float>()) {
            arrived[at++] += value;
            kept += std::fabs(value);
          }
        EXPECT_EQ(at, arrived.size());
      }
      EXPECT_GT(kept, 1.0) << "something is kept, or this test shows nothing";
      // 20 steps of values below 1/32, each rounded a few times to 6e-8 of what has gathered.
      for (size_t i = 0; i < given.size(); ++i) ASSERT_NEAR(arrived[i], given[i], 2e-5 * n) << text;
    }
}

// Whole numbers do not round: then nothing is lost to the last bit.
TEST(ErrorFeedback, OfTopKIsExactForWholeNumbers) {
  const Matrices matrices = {{20, 60}};
  const auto shape = ReductionShape::flat(3);
  auto replicas = test::make_replicas(of("topk:0.05"), matrices, shape);
  std::vector<double> given(1200, 0.0), arrived = given;
  for (int step = 0; step < 30; ++step) {
    for (int r = 0; r < 3; ++r) {
      Floats values = gradient_of(1200, 3, r, step);
      for (float& value : values) value = std::round(value * 1000);
      std::copy(values.begin(), values.end(), replicas[r]->values.begin());
      for (size_t i = 0; i < given.size(); ++i) given[i] += values[i];
    }
    test::sum_in_turn(replicas, shape);
    for (size_t i = 0; i < arrived.size(); ++i) arrived[i] += replicas[0]->values[i];
  }
  for (const auto& replica : replicas)
    for (size_t i = 0; i < arrived.size(); ++i)
      arrived[i] += replica->states[0].residual.as<float>()[i];
  EXPECT_EQ(arrived, given);
}

TEST(ErrorFeedback, StaysWhereATensorIsUnused) {
  for (const char* text : kWithFeedback) {
    const auto shape = ReductionShape::flat(2);
    const Matrices matrices = {{24, 50}, {11, 100}, {7, 300}};
    auto replicas = test::make_replicas(of(text), matrices, shape);
    const auto fill = [&](int step) {
      for (int r = 0; r < 2; ++r) {
        const Floats values = gradient_of(elements_of(matrices), 4, r, step);
        std::copy(values.begin(), values.end(), replicas[r]->values.begin());
      }
    };
    fill(0);
    test::sum_in_turn(replicas, shape);
    const auto residual = [&](int r, int tensor) {
      const auto values = replicas[r]->states[tensor].residual.as<float>();
      return Floats(values.begin(), values.end());
    };
    const Floats unused = residual(0, 1), used = residual(1, 1), elsewhere = residual(0, 2);
    fill(1);
    std::fill_n(replicas[0]->values.begin() + 1200, 1100, 0.0f);
    test::sum_in_turn(replicas, shape, {{1, 0, 1}, {1, 1, 1}});
    EXPECT_EQ(residual(0, 1), unused) << text;
    EXPECT_NE(residual(1, 1), used) << text;
    EXPECT_NE(residual(0, 2), elsewhere) << text;
    // Unused everywhere: the sum is nothing but zeros.
    fill(2);
    for (auto& replica : replicas) std::fill_n(replica->values.begin() + 1200, 1100, 0.0f);
    test::sum_in_turn(replicas, shape, {{1, 0, 1}, {1, 0, 1}});
    EXPECT_EQ(Floats(replicas[0]->values.begin() + 1200, replicas[0]->values.begin() + 2300),
              Floats(1100, 0.0f));
    EXPECT_EQ(residual(0, 1), unused) << text;
  }
}

TEST(ErrorFeedback, OfALeavingReplicaGoesToOneThatStays) {
  const auto shape = ReductionShape::flat(2);
  auto replicas = test::make_replicas(of("onebit"), kMatrices, shape);
  for (int r = 0; r < 2; ++r) {
    const Floats values = gradient_of(elements_of(kMatrices), 6, r, 0);
    std::copy(values.begin(), values.end(), replicas[r]->values.begin());
  }
  test::sum_in_turn(replicas, shape);
  const auto of_replica = [&](int r) {
    const auto values = replicas[r]->states[2].residual.as<float>();
    return Floats(values.begin(), values.end());
  };
  const Floats first = of_replica(0), second = of_replica(1);
  detail::fold_residuals(replicas[0]->states, replicas[1]->states);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(of_replica(0)[i], first[i] + second[i]);
  std::vector<detail::CodedState> empty(3);
  detail::fold_residuals(empty, replicas[1]->states);
  EXPECT_EQ(empty[2].residual.as<float>()[5], second[5]);
}

TEST(NotANumber, GoesOutAndIsNotKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* text : kAll) {
    const auto shape = ReductionShape::flat(2);
    auto replicas = test::make_replicas(of(text), kMatrices, shape);
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 2; ++r) {
        const Floats values = gradient_of(elements_of(kMatrices), 7, r, step);
        std::copy(values.begin(), values.end(), replicas[r]->values.begin());
      }
      if (step == 0) replicas[1]->values[130] = nan;
      test::sum_in_turn(replicas, shape);
      const bool found = std::any_of(replicas[0]->values.begin(), replicas[0]->values.end(),
                                     [](float value) { return std::isnan(value); });
      EXPECT_EQ(found, step == 0) << text << " step " << step;
    }
  }
}

// ---- the same bits everywhere ----

TEST(Coders, GoOnWhereAnEarlierOneOfTheSameStatesEnded) {
  for (const char* text : kAll)
    EXPECT_EQ(sums_in_turn(of(text), ReductionShape::flat(2), true),
              sums_in_turn(of(text), ReductionShape::flat(2)))
        << text;
}

struct Members {
  const char* engine;
  int size;
};

class CodersOverAGroup : public testing::TestWithParam<Members> {};

TEST_P(CodersOverAGroup, HaveTheBitsOfReplicasThatTakeTurns) {
  const auto shape = ReductionShape::flat(GetParam().size);
  for (const char* text : kAll) {
    const auto expected = sums_in_turn(of(text), shape);
    const auto engines = test::make_engines(GetParam().engine, GetParam().size);
    std::vector<std::vector<Floats>> sums(engines.size());
    test::run_all_members(engines, [&](Group group) {
      const auto reduction = cross_device_by_name("all_reduce")();
      CodedBucket bucket(of(text), kMatrices, shape);
      for (int step = 0; step < kSteps; ++step) {
        const Floats values = gradient_of(elements_of(kMatrices), 1, group.rank(), step);
        std::copy(values.begin(), values.end(), bucket.values.begin());
        Exchange exchange = bucket.coder->begin(bucket.all_used());
        for (; exchange.kind != Exchange::Kind::none; exchange = bucket.coder->next())
          detail::start_exchange(exchange, group, *reduction, Millis{20'000}).wait(Millis{20'000});
        sums[group.rank()].push_back(bucket.values);
      }
    });
    for (const auto& of_rank : sums) EXPECT_EQ(of_rank, expected) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, CodersOverAGroup,
                         testing::Values(Members{"solo", 1}, Members{"shm", 2}, Members{"shm", 3},
                                         Members{"shm", 4}, Members{"shm staged", 2},
                                         Members{"shm staged", 3}),
                         [](const auto& info) {
                           std::string name = info.param.engine + std::to_string(info.param.size);
                           std::erase(name, ' ');
                           return name;
                         });

// ---- bytes ----

TEST(WireBytes, AreThoseOfTheFormulas) {
  const Matrices matrices = {{64, 100}, {10, 200}};  // 6400 and 2000 elements
  struct Case {
    const char* text;
    int replicas;
    int64_t bytes;
  };
  const Case cases[] = {
      {"bf16", 2, 2 * 8400},
      {"fp16", 4, 2 * 3 * 2 * 8400 / 4},
      {"topk:0.01", 2, 8 * (64 + 20)},
      {"topk:0.01", 4, 3 * 8 * (64 + 20)},
      {"onebit", 3, 2 * 4 * ((25 + 200) + (8 + 63))},
      {"powersgd:2", 2, 4 * 2 * (64 + 100 + 10 + 200)},
      {"powersgd:2", 1, 0},
  };
  for (const Case& c : cases) {
    const auto shape = ReductionShape::flat(c.replicas);
    auto replicas = test::make_replicas(of(c.text), matrices, shape);
    EXPECT_EQ(test::sum_in_turn(replicas, shape), c.bytes) << c.text << " of " << c.replicas;
  }
}

}  // namespace
}  // namespace tutti
