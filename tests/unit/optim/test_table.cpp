// Our rules against what PyTorch and Keras made of the same gradients (tests/tables).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/optim/rule.h"

namespace tutti::optim {
namespace {

using nlohmann::json;
using Tensors = std::vector<std::vector<double>>;

Rule rule_of(const json& entry) {
  Rule::Options options = rule_by_name(entry.at("name").get<std::string>()).options();
  size_t taken = 0;
  std::visit(
      [&](auto& chosen) {
        visit_fields(chosen, [&](const char* name, auto& value) {
          const auto found = entry.at("options").find(name);
          if (found == entry.at("options").end()) return;
          found->get_to(value);
          ++taken;
        });
      },
      options);
  EXPECT_EQ(taken, entry.at("options").size()) << entry.dump();
  return Rule(options);
}

template <class T>
struct Trained {
  Trained(const Rule& rule, const std::vector<double>& start)
      : parameter(start.begin(), start.end()) {
    for (int state = 0; state < rule.num_states(); ++state)
      states.emplace_back(start.size(), static_cast<T>(rule.state_start(state)));
  }

  void step(const Rule& rule, const std::vector<double>& of) {
    const std::vector<T> gradient(of.begin(), of.end());
    std::vector<void*> places;
    for (auto& state : states) places.push_back(state.data());
    const auto n = std::ssize(parameter);
    scalars = rule.next(scalars, rule.learning_rate());
    double trust = 1;
    if (rule.measures()) {
      std::vector<Squares> squares(1);
      rule.measure(dtype_of<T>(), parameter.data(), gradient.data(), places, n, scalars, squares);
      trust = rule.trust(squares[0]);
    }
    rule.update(dtype_of<T>(), parameter.data(), gradient.data(), places, n, scalars, trust);
  }

  std::vector<T> parameter;
  std::vector<std::vector<T>> states;
  StepScalars scalars;
};

template <class T>
void compare(double tolerance) {
  std::ifstream file("tests/tables/optimizers.json");
  const json table = json::parse(file);
  const auto start = table.at("start").get<Tensors>();
  for (const json& entry : table.at("cases")) {
    const Rule rule = rule_of(entry);
    std::vector<Trained<T>> trained;
    for (const auto& values : start) trained.emplace_back(rule, values);
    for (const json& gradients : table.at("gradients"))
      for (size_t i = 0; i < trained.size(); ++i)
        trained[i].step(rule, gradients.at(i).get<std::vector<double>>());
    // Keras has some of its scalars in float32 whatever the variables are.
    const double most = entry.at("source") == "keras" ? std::max(tolerance, 1e-8) : tolerance;
    const auto expected = entry.at("parameters").get<Tensors>();
    for (size_t i = 0; i < expected.size(); ++i)
      for (size_t k = 0; k < expected[i].size(); ++k) {
        EXPECT_NEAR(trained[i].parameter[k], expected[i][k],
                    most * std::max(1.0, std::abs(expected[i][k])))
            << entry.at("source") << " " << entry.at("name") << " " << entry.at("options");
        EXPECT_NE(expected[i][k], start[i][k]);
      }
  }
}

TEST(OptimizerTable, DoublesAgree) { compare<double>(1e-13); }
TEST(OptimizerTable, FloatsAgree) { compare<float>(4e-6); }

TEST(OptimizerTable, EveryRuleHasACaseHereOrBesideTorch) {
  std::ifstream file("tests/tables/optimizers.json");
  const json table = json::parse(file);
  std::vector<std::string> known = {"sgd", "adam", "adamw", "adagrad", "ftrl"};
  for (const json& entry : table.at("cases")) known.push_back(entry.at("name"));
  for (const std::string& name : rule_names())
    EXPECT_NE(std::ranges::find(known, name), known.end()) << name;
}

}  // namespace
}  // namespace tutti::optim
