// Muon and Adafactor against what PyTorch made of the same gradients (tests/tables), and their
// products against the obvious ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/optim/kernels/products.h"
#include "tutti/optim/whole_rule.h"

#include "tests/support/message_of.h"

namespace tutti::optim {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

WholeRule whole_rule_of(const json& entry) {
  WholeRule::Options options = whole_rule_by_name(entry.at("name").get<std::string>()).options();
  size_t taken = 0;
  std::visit(
      [&](auto& chosen) {
        visit_whole_fields(chosen, [&](const char* name, auto& value) {
          const auto found = entry.at("options").find(name);
          if (found == entry.at("options").end()) return;
          found->get_to(value);
          ++taken;
        });
      },
      options);
  EXPECT_EQ(taken, entry.at("options").size()) << entry.dump();
  return WholeRule(options);
}

template <class T>
class WholeTrained {
 public:
  WholeTrained(const WholeRule& rule, const std::vector<int64_t>& shape,
               const std::vector<double>& start, const std::string& name = "weight")
      : of_(rule, name, shape), values(start.begin(), start.end()) {
    for (const WholeState& state : of_.states())
      states_.emplace_back(static_cast<size_t>(std::accumulate(
          state.shape.begin(), state.shape.end(), int64_t{1}, std::multiplies<>())));
  }

  void step(double learning_rate, const std::vector<double>& gradient_of) {
    const std::vector<T> gradient(gradient_of.begin(), gradient_of.end());
    std::vector<void*> places;
    for (auto& state : states_) places.push_back(state.data());
    scalars_ = of_.next(scalars_, learning_rate);
    of_.update(dtype_of<T>(), values.data(), gradient.data(), places, scalars_);
  }

 private:
  WholeParameter of_;
  std::vector<std::vector<T>> states_;
  StepScalars scalars_;

 public:
  std::vector<T> values;
};

template <class T>
void compare_whole(double tolerance) {
  std::ifstream file("tests/tables/whole_rules.json");
  const json table = json::parse(file);
  const auto shapes = table.at("shapes").get<std::vector<std::vector<int64_t>>>();
  for (const json& entry : table.at("cases")) {
    const WholeRule rule = whole_rule_of(entry);
    // bfloat16 has 8 bits: each of the twelve steps is 1e-3 of an orthogonal matrix.
    const double most = entry.at("arithmetic") == "bfloat16" ? 12 * 1e-3 * 0.05 : tolerance;
    for (size_t i = 0; i < shapes.size(); ++i) {
      SCOPED_TRACE(entry.at("name").get<std::string>() + entry.at("options").dump() +
                   std::to_string(i));
      const auto start = table.at("start").at(i).get<std::vector<double>>();
      WholeTrained<T> trained(rule, shapes[i], start);
      for (const json& gradients : table.at("gradients"))
        trained.step(rule.learning_rate(), gradients.at(i).get<std::vector<double>>());
      const auto expected = entry.at("parameters").at(i).get<std::vector<double>>();
      for (size_t k = 0; k < expected.size(); ++k) {
        EXPECT_NEAR(trained.values[k], expected[k], most * std::max(1.0, std::abs(expected[k])));
        EXPECT_NE(expected[k], start[k]);
      }
    }
  }
}

TEST(WholeRuleTable, DoublesAgree) { compare_whole<double>(1e-11); }
TEST(WholeRuleTable, FloatsAgree) { compare_whole<float>(1e-5); }

TEST(WholeRules, OfMuonWhatIsNoMatrixOrHasSuchANameGoesByAdamW) {
  const std::vector<double> start(12, 0.5), gradient(12, 0.25);
  const WholeRule muon_rule(
      MuonOptions{.learning_rate = 0.02, .adamw = {.learning_rate = 0.004}, .others = {"*.table"}});
  const Rule beside = adamw({.learning_rate = 0.002});
  std::vector<double> expected = start, m(12), v(12);
  void* const states[] = {m.data(), v.data()};
  beside.update(DType::float64, expected.data(), gradient.data(), states, 12,
                beside.next({}, 0.002));
  WholeTrained<double> by_name(muon_rule, {3, 4}, start, "words.table");
  WholeTrained<double> by_shape(muon_rule, {12}, start), matrix(muon_rule, {3, 4}, start);
  for (auto* const one : {&by_name, &by_shape, &matrix}) one->step(0.01, gradient);  // half of both
  EXPECT_EQ(by_name.values, expected);
  EXPECT_EQ(by_shape.values, expected);
  EXPECT_NE(matrix.values, expected);
}

// Singular values of the step are about 1, whatever those of the gradient are.
TEST(WholeRules, MuonsStepIsNearlyOrthogonal) {
  constexpr int64_t kRows = 6, kColumns = 40;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> gradient(kRows * kColumns);
  for (double& value : gradient) value = 1e3 * normal(random);
  const WholeRule rule(MuonOptions{.learning_rate = 1.0, .weight_decay = 0});
  WholeTrained<double> trained(rule, {kRows, kColumns}, std::vector<double>(gradient.size()));
  trained.step(1.0, gradient);
  for (int64_t r = 0; r < kRows; ++r) {
    double square = 0;
    for (int64_t c = 0; c < kColumns; ++c)
      square += trained.values[static_cast<size_t>(r * kColumns + c)] *
                trained.values[static_cast<size_t>(r * kColumns + c)];
    EXPECT_GT(std::sqrt(square), 0.6);
    EXPECT_LT(std::sqrt(square), 1.3);
  }
}

TEST(WholeRules, AGradientOfZeroMovesNothingButByDecay) {
  for (const WholeRule& rule :
       {WholeRule(MuonOptions{.weight_decay = 0}), WholeRule(AdafactorOptions{})}) {
    WholeTrained<float> trained(rule, {3, 2}, std::vector<double>(6, 0.5));
    trained.step(rule.learning_rate(), std::vector<double>(6));
    EXPECT_EQ(trained.values, std::vector<float>(6, 0.5F)) << rule.name();
  }
}

template <class T>
std::vector<T> obvious_product(const std::vector<T>& a, const std::vector<T>& b, int64_t rows,
                               int64_t inner, int64_t columns) {
  std::vector<T> c;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < columns; ++n) {
      T sum = 0;
      for (int64_t k = 0; k < inner; ++k) {
        const volatile T product =
            a[static_cast<size_t>(r * inner + k)] * b[static_cast<size_t>(k * columns + n)];
        sum = sum + product;
      }
      c.push_back(sum);
    }
  return c;
}

TEST(WholeRules, ProductsHaveTheBitsOfTheObviousOnesOnEveryInstructionSet) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const auto& [rows, inner, columns] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {4, 3, 16}, {5, 7, 17}, {3, 64, 8}, {9, 33, 35}, {2, 1, 31}, {13, 300, 70}}) {
    std::vector<float> a(static_cast<size_t>(rows * inner)),
        b(static_cast<size_t>(inner * columns));
    for (auto* const all : {&a, &b})
      for (float& value : *all) value = static_cast<float>(normal(random));
    const std::vector<double> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
    for (const CpuVariant variant : runnable_variants()) {
      std::vector<float> c(static_cast<size_t>(rows * columns), 7);
      std::vector<double> wide_c(c.size(), 7);
      const detail::Products& products = detail::products_for(variant);
      products.float32(a.data(), b.data(), c.data(), rows, inner, columns);
      products.float64(wide_a.data(), wide_b.data(), wide_c.data(), rows, inner, columns);
      EXPECT_EQ(c, obvious_product(a, b, rows, inner, columns)) << name_of(variant);
      EXPECT_EQ(wide_c, obvious_product(wide_a, wide_b, rows, inner, columns)) << name_of(variant);
    }
  }
}

TEST(WholeRules, WhatIsOutOfRangeIsNamed) {
  const std::vector<std::pair<WholeRule::Options, std::string>> cases = {
      {MuonOptions{.learning_rate = 0}, "muon: learning_rate = 0"},
      {MuonOptions{.momentum = 1}, "muon: momentum = 1"},
      {MuonOptions{.momentum = 0}, "momentum > 0 when nesterov is on"},
      {MuonOptions{.steps = 0}, "muon: steps = 0"},
      {MuonOptions{.steps = 100}, "muon: steps = 100"},
      {MuonOptions{.epsilon = std::nan("")}, "muon: epsilon = nan"},
      {MuonOptions{.weight_decay = -1}, "muon: weight_decay = -1"},
      {MuonOptions{.adamw = {.beta1 = 1}}, "no matrix: optimizer adamw: beta1 = 1"},
      {AdafactorOptions{.learning_rate = -1}, "adafactor: learning_rate = -1"},
      {AdafactorOptions{.beta2_decay = 0.5}, "adafactor: beta2_decay = 0.5"},
      {AdafactorOptions{.epsilon1 = -1}, "adafactor: epsilon1 = -1"},
      {AdafactorOptions{.epsilon2 = 0}, "adafactor: epsilon2 = 0"},
      {AdafactorOptions{.clip = 0.5}, "adafactor: clip = 0.5"},
      {AdafactorOptions{.weight_decay = std::nan("")}, "adafactor: weight_decay = nan"},
  };
  for (const auto& [options, words] : cases)
    EXPECT_THAT(message_of<UsageError>([&] { WholeRule{options}; }), HasSubstr(words));
  EXPECT_THAT(message_of<UsageError>([] { whole_rule_by_name("muom"); }),
              HasSubstr("did you mean \"muon\""));
}

TEST(WholeRules, APatternOfOnesOwnMustFitAndTheUsualOnesMayNot) {
  const std::vector<std::string> names = {"a.weight", "b.weight"};
  WholeRule(MuonOptions{}).require_fitting(names);
  WholeRule(MuonOptions{.others = {"a.*"}}).require_fitting(names);
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { WholeRule(MuonOptions{.others = {"c.*"}}).require_fitting(names); }),
      HasSubstr("others \"c.*\" fits no parameter; expected a pattern of some of: a.weight"));
}

TEST(WholeRules, WordsHaveEveryField) {
  EXPECT_EQ(WholeRule(AdafactorOptions{}).words(),
            "adafactor learning_rate 0.01 beta2_decay -0.8 epsilon1 0 epsilon2 0.001 clip 1 "
            "weight_decay 0");
  EXPECT_THAT(WholeRule(MuonOptions{.steps = 4, .others = {"x", "y"}}).words(),
              ::testing::AllOf(HasSubstr("steps 4"), HasSubstr("adamw_beta2 0.999"),
                               HasSubstr("others [x, y]")));
}

}  // namespace
}  // namespace tutti::optim
