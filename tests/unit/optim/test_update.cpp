// The kernels against the textbook in double, and the instruction sets against each other, by
// bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/optim/both_gradients.h"
#include "tutti/optim/kernels/dispatch.h"

namespace tutti::optim {
namespace {

struct NamedRule {
  const char* name;
  Rule rule;
};

std::vector<NamedRule> all_rules() {
  return {
      {"sgd", sgd({.learning_rate = 0.1})},
      {"sgd decay", sgd({.learning_rate = 0.1, .weight_decay = 0.03})},
      {"sgd momentum", sgd({.learning_rate = 0.1, .momentum = 0.9})},
      {"sgd momentum decay", sgd({.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.03})},
      {"sgd nesterov", sgd({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true})},
      {"sgd nesterov decay",
       sgd({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.03})},
      {"adam", adam({.learning_rate = 0.01})},
      {"adam decay", adam({.learning_rate = 0.01, .weight_decay = 0.03})},
      {"adam no memory", adam({.learning_rate = 0.01, .beta1 = 0, .beta2 = 0})},
      {"adamw", adamw({.learning_rate = 0.01, .weight_decay = 0.03})},
      {"adam amsgrad", adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true})},
      {"adam amsgrad decay", adam({.learning_rate = 0.01, .weight_decay = 0.03, .amsgrad = true})},
      {"adamw amsgrad", adamw({.learning_rate = 0.01, .weight_decay = 0.03, .amsgrad = true})},
      {"adagrad", adagrad({.learning_rate = 0.1})},
      {"adagrad decay",
       adagrad({.learning_rate = 0.1, .initial_accumulator = 0.1, .weight_decay = 0.03})},
      {"ftrl", ftrl({.learning_rate = 0.1})},
      {"ftrl sparse", ftrl({.learning_rate = 0.1, .beta = 0, .l1 = 0.2, .l2 = 0.1})},
      {"rmsprop", rmsprop()},
      {"rmsprop momentum decay", rmsprop({.momentum = 0.5, .weight_decay = 0.03})},
      {"rmsprop centered", rmsprop({.centered = true})},
      {"rmsprop centered momentum", rmsprop({.momentum = 0.5, .centered = true})},
      {"adadelta decay", adadelta({.weight_decay = 0.03})},
      {"adamax decay", adamax({.weight_decay = 0.03})},
      {"nadam decay", nadam({.weight_decay = 0.03})},
      {"lion decay", lion({.weight_decay = 0.03})},
      {"lars decay", lars({.weight_decay = 0.03})},
      {"lamb decay", lamb({.weight_decay = 0.03})},
  };
}

template <class T>
struct Problem {
  std::vector<T> p, m, v, b;

  explicit Problem(size_t n) : p(n), m(n), v(n), b(n) {}
  Problem(size_t n, const Rule& rule) : Problem(n) {
    for (int state = 0; state < rule.num_states(); ++state)
      of_state(state).assign(n, static_cast<T>(rule.state_start(state)));
  }

  std::vector<T>& of_state(int state) { return state == 0 ? m : state == 1 ? v : b; }
  std::vector<void*> states(const Rule& rule, size_t at = 0) {
    std::vector<void*> all = {m.data() + at, v.data() + at, b.data() + at};
    all.resize(static_cast<size_t>(rule.num_states()));
    return all;
  }
  bool operator==(const Problem& other) const {
    const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
    };
    return same(p, other.p) && same(m, other.m) && same(v, other.v) && same(b, other.b);
  }
};

template <class T>
T normal_like(RandomStream& random) {
  return static_cast<T>(random.uniform() + random.uniform() + random.uniform() - 1.5f);
}

// Numbers at which arithmetic is special, then ordinary ones of all sizes.
template <class T>
std::vector<T> hard_numbers(size_t n, uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {0,
                       -T{0},
                       Limits::denorm_min(),
                       -Limits::denorm_min(),
                       Limits::min() / 3,
                       Limits::min(),
                       Limits::max(),
                       -Limits::max(),
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::epsilon(),
                       1,
                       -1};
  RandomStream random(seed);
  std::vector<T> numbers(n);
  for (T& number : numbers) {
    if (random.below(4) == 0)
      number = special[random.below(std::size(special))];
    else
      number = std::ldexp(normal_like<T>(random), static_cast<int>(random.below(120)) - 60);
  }
  return numbers;
}

template <class T>
Problem<T> hard_problem(size_t n) {
  Problem<T> problem(n);
  problem.p = hard_numbers<T>(n, 1);
  problem.m = hard_numbers<T>(n, 2);
  problem.v = hard_numbers<T>(n, 3);
  problem.b = hard_numbers<T>(n, 6);
  for (T& second_moment : problem.v) second_moment = std::abs(second_moment);
  return problem;
}

// AMSGrad, of three states, is in the table too.
bool in_textbook(const Rule& rule) { return rule.options().index() <= 4 && rule.num_states() < 3; }

// One step of the textbook, in double, with powers by std::pow; the other rules are held against
// others' results (test_table.cpp).
void textbook(const Rule& rule, int64_t t, double g, double& p, double& m, double& v) {
  if (const auto* o = std::get_if<SgdOptions>(&rule.options())) {
    g += o->weight_decay * p;
    if (o->momentum != 0) {
      m = t == 1 ? g : o->momentum * m + g;
      g = o->nesterov ? g + o->momentum * m : m;
    }
    p -= o->learning_rate * g;
    return;
  }
  if (const auto* o = std::get_if<AdagradOptions>(&rule.options())) {
    g += o->weight_decay * p;
    m += g * g;
    p -= o->learning_rate * g / (std::sqrt(m) + o->epsilon);
    return;
  }
  if (const auto* o = std::get_if<FtrlOptions>(&rule.options())) {
    if (t == 1 && p != 0)
      m = -p * ((o->beta + std::sqrt(v)) / o->learning_rate + o->l2) - std::copysign(o->l1, p);
    const double sigma = (std::sqrt(v + g * g) - std::sqrt(v)) / o->learning_rate;
    m += g - sigma * p;
    v += g * g;
    const double sign = m < 0 ? -1 : 1;
    p = std::abs(m) <= o->l1
            ? 0
            : -(m - sign * o->l1) / ((o->beta + std::sqrt(v)) / o->learning_rate + o->l2);
    return;
  }
  const auto* plain = std::get_if<AdamOptions>(&rule.options());
  const auto* decoupled = std::get_if<AdamWOptions>(&rule.options());
  const double beta1 = plain ? plain->beta1 : decoupled->beta1;
  const double beta2 = plain ? plain->beta2 : decoupled->beta2;
  const double epsilon = plain ? plain->epsilon : decoupled->epsilon;
  if (plain) g += plain->weight_decay * p;
  if (decoupled) p -= decoupled->learning_rate * decoupled->weight_decay * p;
  m = beta1 * m + (1 - beta1) * g;
  v = beta2 * v + (1 - beta2) * g * g;
  const double m_hat = m / (1 - std::pow(beta1, t)), v_hat = v / (1 - std::pow(beta2, t));
  p -= rule.learning_rate() * m_hat / (std::sqrt(v_hat) + epsilon);
}

template <class T>
class UpdateTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(UpdateTest, Types);

TYPED_TEST(UpdateTest, FollowsTheTextbook) {
  const size_t n = 131;
  // AdamW's factor 1 - lr * decay is rounded once and applied 100 times, as in torch: 100 x 2^-25.
  const double tolerance = sizeof(TypeParam) == 4 ? 4e-6 : 1e-14;
  for (const auto& [name, rule] : all_rules()) {
    if (!in_textbook(rule)) continue;
    Problem<TypeParam> ours(n, rule);
    Problem<double> expected(n, rule);
    RandomStream random(17);
    for (size_t i = 0; i < n; ++i) expected.p[i] = ours.p[i] = normal_like<TypeParam>(random);
    StepScalars scalars;
    std::vector<TypeParam> g(n);
    for (int64_t t = 1; t <= 100; ++t) {
      for (TypeParam& value : g) value = normal_like<TypeParam>(random);
      scalars = rule.next(scalars, rule.learning_rate());
      rule.update(dtype_of<TypeParam>(), ours.p.data(), g.data(), ours.states(rule),
                  static_cast<int64_t>(n), scalars);
      for (size_t i = 0; i < n; ++i)
        textbook(rule, t, g[i], expected.p[i], expected.m[i], expected.v[i]);
    }
    double largest = 0, difference = 0;
    for (size_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::abs(expected.p[i]));
      difference = std::max(difference, std::abs(expected.p[i] - ours.p[i]));
    }
    EXPECT_LT(difference / largest, tolerance) << name;
  }
}

TYPED_TEST(UpdateTest, EveryInstructionSetGivesTheSameBytes) {
  for (size_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 1024, 5000}) {
    const auto g = hard_numbers<TypeParam>(n, 4);
    for (const auto& [name, rule] : all_rules()) {
      for (int64_t already : {0, 1, 1000}) {
        StepScalars scalars;
        for (int64_t t = 0; t <= already; ++t) scalars = rule.next(scalars, rule.learning_rate());
        std::vector<Problem<TypeParam>> results;
        for (CpuVariant variant : runnable_variants()) {
          results.push_back(hard_problem<TypeParam>(n));
          detail::update_with(detail::kernels_for(variant), rule.options(), dtype_of<TypeParam>(),
                              results.back().p.data(), g.data(), results.back().states(rule),
                              static_cast<int64_t>(n), scalars);
          EXPECT_TRUE(results.back() == results.front())
              << name << ", " << n << " elements, " << name_of(variant) << " against baseline";
        }
      }
    }
  }
}

TYPED_TEST(UpdateTest, CutsAnywhereGiveTheSameBytes) {
  const size_t n = 777;
  const auto g = hard_numbers<TypeParam>(n, 4);
  for (const auto& [name, rule] : all_rules()) {
    const StepScalars scalars = rule.next(rule.next({}, 0.1), 0.1);
    for (CpuVariant variant : runnable_variants()) {
      const auto update = [&](Problem<TypeParam>& problem, size_t begin, size_t end) {
        detail::update_with(detail::kernels_for(variant), rule.options(), dtype_of<TypeParam>(),
                            problem.p.data() + begin, g.data() + begin, problem.states(rule, begin),
                            static_cast<int64_t>(end - begin), scalars);
      };
      auto whole = hard_problem<TypeParam>(n);
      update(whole, 0, n);
      RandomStream random(5);
      for (int round = 0; round < 20; ++round) {
        auto cut = hard_problem<TypeParam>(n);
        for (size_t begin = 0; begin < n;) {
          const size_t end = std::min(n, begin + 1 + random.below(round < 10 ? 40 : 400));
          update(cut, begin, end);
          begin = end;
        }
        ASSERT_TRUE(cut == whole) << name << ", " << name_of(variant) << ", round " << round;
      }
    }
  }
}

TYPED_TEST(UpdateTest, TwoGradientsGiveTheBytesOfTheirSum) {
  const auto n = size_t{777};
  const auto g = hard_numbers<TypeParam>(n, 4);
  const auto h = hard_numbers<TypeParam>(n, 7);
  std::vector<TypeParam> sum(n);
  for (size_t i = 0; i < n; ++i) sum[i] = g[i] + h[i];
  int adding = 0;
  for (const auto& [name, rule] : all_rules()) {
    if (!adds_gradients(rule)) continue;
    ++adding;
    for (const int64_t steps : {1, 2}) {
      StepScalars scalars;
      for (int64_t t = 0; t < steps; ++t) scalars = rule.next(scalars, 0.1);
      for (CpuVariant variant : runnable_variants()) {
        const auto& kernels = detail::kernels_for(variant);
        auto by_sum = hard_problem<TypeParam>(n), by_two = by_sum;
        detail::update_with(kernels, rule.options(), dtype_of<TypeParam>(), by_sum.p.data(),
                            sum.data(), by_sum.states(rule), n, scalars);
        detail::update_with(kernels, rule.options(), dtype_of<TypeParam>(), by_two.p.data(),
                            g.data(), by_two.states(rule), n, scalars, 1.0, h.data());
        EXPECT_TRUE(by_two == by_sum) << name << ", " << name_of(variant) << ", step " << steps;
      }
    }
  }
  EXPECT_EQ(adding, 13) << "sgd, adam and adamw of the table";
}

TYPED_TEST(UpdateTest, ByBothIsTheUpdateByTheirSum) {
  const size_t n = 300;
  const auto g = hard_numbers<TypeParam>(n, 4), h = hard_numbers<TypeParam>(n, 7);
  std::vector<TypeParam> sum(n);
  for (size_t i = 0; i < n; ++i) sum[i] = g[i] + h[i];
  const DType dtype = dtype_of<TypeParam>();
  for (const auto& [name, rule] : all_rules()) {
    const StepScalars scalars = rule.next(rule.next({}, 0.1), 0.1);
    auto by_sum = hard_problem<TypeParam>(n), by_both = by_sum;
    const auto update = [&](const TypeParam* second, const StepScalars& by) {
      update_by_both(rule, dtype, by_both.p.data(), g.data(), second, by_both.states(rule), n, by);
    };
    if (!adds_gradients(rule)) {
      EXPECT_THROW(update(h.data(), scalars), Error) << name;
      continue;
    }
    EXPECT_THROW(update(nullptr, scalars), Error) << name;
    EXPECT_THROW(update(h.data(), {}), Error) << name;
    EXPECT_TRUE(by_both == by_sum) << name << ": a refusal changes nothing";
    rule.update(dtype, by_sum.p.data(), sum.data(), by_sum.states(rule), n, scalars);
    update(h.data(), scalars);
    EXPECT_TRUE(by_both == by_sum) << name;
  }
}

TYPED_TEST(UpdateTest, TouchesNothingOutsideTheSlice) {
  for (const auto& [name, rule] : all_rules()) {
    const size_t n = 70, begin = 3, end = 64;
    auto problem = hard_problem<TypeParam>(n);
    const auto before = problem;
    auto g = hard_numbers<TypeParam>(n, 4);
    const auto g_before = g;
    rule.update(dtype_of<TypeParam>(), problem.p.data() + begin, g.data() + begin,
                problem.states(rule, begin), static_cast<int64_t>(end - begin), rule.next({}, 0.1));
    EXPECT_EQ(std::memcmp(g.data(), g_before.data(), n * sizeof(TypeParam)), 0) << name;
    for (size_t i = 0; i < n; i = i + 1 == begin ? end : i + 1) {
      EXPECT_EQ(problem.p[i], before.p[i]) << name << " at " << i;
      EXPECT_EQ(problem.m[i], before.m[i]) << name << " at " << i;
      EXPECT_EQ(problem.v[i], before.v[i]) << name << " at " << i;
      EXPECT_EQ(problem.b[i], before.b[i]) << name << " at " << i;
    }
  }
}

TYPED_TEST(UpdateTest, FirstMomentumBufferIsTheGradientWhateverStoodThere) {
  const Rule rule = sgd({.learning_rate = 1, .momentum = 0.5});
  std::vector<TypeParam> p = {0, 0}, g = {3, 4};
  std::vector<TypeParam> v(2, std::numeric_limits<TypeParam>::quiet_NaN());
  void* const states[] = {v.data()};
  StepScalars scalars = rule.next({}, 1);
  rule.update(dtype_of<TypeParam>(), p.data(), g.data(), states, 2, scalars);
  EXPECT_EQ(v, (std::vector<TypeParam>{3, 4}));
  EXPECT_EQ(p, (std::vector<TypeParam>{-3, -4}));
  scalars = rule.next(scalars, 1);
  rule.update(dtype_of<TypeParam>(), p.data(), g.data(), states, 2, scalars);
  EXPECT_EQ(v, (std::vector<TypeParam>{4.5, 6}));
  EXPECT_EQ(p, (std::vector<TypeParam>{-7.5, -10}));
}

TYPED_TEST(UpdateTest, FtrlKeepsSmallSumsAtZeroAndGoesOnFromWhereItBegan) {
  const Rule rule = ftrl({.learning_rate = 0.5, .l1 = 1});
  std::vector<TypeParam> p = {0, 0, 7, -3}, g = {TypeParam(0.5), 2, TypeParam(NAN), 0};
  std::vector<TypeParam> z(4, TypeParam(9));  // not read at first
  std::vector<TypeParam> n(4, static_cast<TypeParam>(rule.state_start(1)));
  void* const states[] = {z.data(), n.data()};
  rule.update(dtype_of<TypeParam>(), p.data(), g.data(), states, 4, rule.next({}, 0.5));
  EXPECT_EQ(p[0], 0) << "|z| <= l1";
  EXPECT_LT(p[1], 0);
  EXPECT_TRUE(std::isnan(p[2])) << "what is no number is not hidden by the zero";
  EXPECT_NEAR(p[3], -3, 1e-5) << "a gradient of zero moves nothing";
}

TYPED_TEST(UpdateTest, WithoutDecayInfiniteParametersDoNotSpoilTheState) {
  // 0 x inf would be NaN: a decay of zero must be left out, as torch::optim does.
  for (const Rule& rule : {sgd({.momentum = 0.9}), adam()}) {
    std::vector<TypeParam> p = {std::numeric_limits<TypeParam>::infinity()}, g = {1}, m(1), v(1);
    void* const all[] = {m.data(), v.data()};
    rule.update(dtype_of<TypeParam>(), p.data(), g.data(),
                std::span(all, static_cast<size_t>(rule.num_states())), 1, rule.next({}, 0.1));
    EXPECT_TRUE(std::isfinite(m[0])) << rule.name();
    EXPECT_TRUE(std::isinf(p[0])) << rule.name();
  }
}

TYPED_TEST(UpdateTest, NormsHaveTheSameBitsEverywhere) {
  const Rule rule = lamb({.weight_decay = 0.03});
  for (const int64_t n : {1, 15, 16, 17, 1000, 1024, 1025, 3000}) {
    const size_t blocks = static_cast<size_t>((n + kBlockElements - 1) / kBlockElements);
    auto g = hard_numbers<TypeParam>(static_cast<size_t>(n), 4);
    for (TypeParam& value : g) value = std::abs(value) < 1e30 ? value : TypeParam(1);
    std::vector<std::vector<double>> sums;
    std::vector<std::vector<Squares>> measured;
    for (CpuVariant variant : runnable_variants()) {
      const detail::Kernels& kernels = detail::kernels_for(variant);
      detail::square_blocks_with(kernels, dtype_of<TypeParam>(), g.data(), n,
                                 sums.emplace_back(blocks));
      Problem<TypeParam> problem(static_cast<size_t>(n), rule);
      problem.p = g;
      detail::measure_with(kernels, rule.options(), dtype_of<TypeParam>(), problem.p.data(),
                           g.data(), problem.states(rule), n, rule.next({}, 0.1),
                           measured.emplace_back(blocks));
      EXPECT_EQ(sums.back(), sums.front()) << name_of(variant) << ", " << n;
      for (size_t block = 0; block < blocks; ++block) {
        EXPECT_EQ(measured.back()[block].parameter, sums.front()[block]);
        EXPECT_EQ(measured.back()[block].step, measured.front()[block].step);
      }
    }
    double all = 0, expected = 0;
    for (const double sum : sums.front()) all += sum;
    for (const TypeParam value : g) expected += static_cast<double>(value) * value;
    EXPECT_NEAR(all / expected, 1, 1e-12);
  }
}

}  // namespace
}  // namespace tutti::optim
