#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/optim/rule.h"

#include "tests/support/message_of.h"

namespace tutti::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Rule, NamesAndStates) {
  EXPECT_EQ(sgd().name(), "sgd");
  EXPECT_EQ(sgd().num_states(), 0);
  EXPECT_EQ(sgd({.momentum = 0.9}).num_states(), 1);
  EXPECT_EQ(sgd({.momentum = 0.9}).state_name(0), "momentum_buffer");
  for (const Rule& rule : {adam(), adamw()}) {
    EXPECT_EQ(rule.num_states(), 2);
    EXPECT_EQ(rule.state_name(0), "exp_avg");
    EXPECT_EQ(rule.state_name(1), "exp_avg_sq");
    EXPECT_EQ(rule.learning_rate(), 1e-3);
  }
  for (const Rule& rule : {adam({.amsgrad = true}), adamw({.amsgrad = true})}) {
    EXPECT_EQ(rule.num_states(), kMostStates);
    EXPECT_EQ(rule.state_name(2), "max_exp_avg_sq");
    EXPECT_EQ(rule.state_start(2), 0);
  }
  EXPECT_EQ(adam().name(), "adam");
  EXPECT_EQ(adamw().name(), "adamw");
  EXPECT_EQ(std::get<AdamWOptions>(adamw().options()).weight_decay, 1e-2);
  EXPECT_EQ(sgd({.learning_rate = 0.5}).learning_rate(), 0.5);
  EXPECT_EQ(adagrad().name(), "adagrad");
  EXPECT_EQ(adagrad().num_states(), 1);
  EXPECT_EQ(adagrad().state_name(0), "sum");
  EXPECT_EQ(ftrl().name(), "ftrl");
  EXPECT_EQ(ftrl().num_states(), 2);
  EXPECT_EQ(ftrl().state_name(0), "linear");
  EXPECT_EQ(ftrl().state_name(1), "accumulator");
  const Rule most = rmsprop({.momentum = 0.5, .centered = true});
  EXPECT_EQ(most.num_states(), kMostStates);
  EXPECT_EQ(most.state_name(2), "momentum_buffer");
  EXPECT_EQ(rmsprop({.momentum = 0.5}).state_name(1), "momentum_buffer");
  EXPECT_EQ(adadelta().state_name(1), "acc_delta");
  EXPECT_EQ(adamax().state_name(1), "exp_inf");
  EXPECT_EQ(lion().num_states(), 1);
  for (const std::string& name : rule_names())
    EXPECT_EQ(rule_by_name(name).measures(), name == "lars" || name == "lamb") << name;
}

TEST(Rule, StatesStartWhereOptionsSay) {
  EXPECT_EQ(adam().state_start(0), 0);
  EXPECT_EQ(adam().state_start(1), 0);
  EXPECT_EQ(adagrad({.initial_accumulator = 0.25}).state_start(0), 0.25);
  EXPECT_EQ(ftrl({.initial_accumulator = 0.5}).state_start(0), 0);
  EXPECT_EQ(ftrl({.initial_accumulator = 0.5}).state_start(1), 0.5);
}

TEST(Rule, BadOptionsNameFieldValueAndRange) {
  struct Case {
    Rule::Options options;
    const char* rule;
    const char* field;
    const char* value;
    const char* range;
  };
  const Case cases[] = {
      {SgdOptions{.learning_rate = 0}, "sgd", "learning_rate", "= 0", "> 0"},
      {SgdOptions{.learning_rate = -0.1}, "sgd", "learning_rate", "= -0.1", "> 0"},
      {SgdOptions{.learning_rate = kNan}, "sgd", "learning_rate", "= nan", "> 0"},
      {SgdOptions{.learning_rate = kInf}, "sgd", "learning_rate", "= inf", "finite"},
      {SgdOptions{.learning_rate = 1e-46}, "sgd", "learning_rate", "= 1e-46", "float32 keeps"},
      {SgdOptions{.learning_rate = 1e39}, "sgd", "learning_rate", "= 1e+39", "to 3.4e38"},
      {SgdOptions{.weight_decay = 1e38}, "sgd", "weight_decay", "= 1e+38", "to 1e12"},
      {AdamOptions{.epsilon = 1e-46}, "adam", "epsilon", "= 1e-46", "float32 keeps"},
      {AdamWOptions{.weight_decay = 1e-46}, "adamw", "weight_decay", "= 1e-46", "float32 keeps"},
      {FtrlOptions{.l1 = 1e38}, "ftrl", "l1", "= 1e+38", "to 1e12"},
      {LarsOptions{.trust = 1e-40}, "lars", "trust", "= 1e-40", "float32 keeps"},
      {SgdOptions{.momentum = 1}, "sgd", "momentum", "= 1", "0 <= momentum < 1"},
      {SgdOptions{.momentum = -0.5}, "sgd", "momentum", "= -0.5", "0 <= momentum < 1"},
      {SgdOptions{.momentum = kNan}, "sgd", "momentum", "= nan", "0 <= momentum < 1"},
      {SgdOptions{.nesterov = true}, "sgd", "momentum", "= 0", "> 0 when nesterov is on"},
      {SgdOptions{.weight_decay = -1}, "sgd", "weight_decay", "= -1", ">= 0"},
      {SgdOptions{.weight_decay = kNan}, "sgd", "weight_decay", "= nan", ">= 0"},
      {AdamOptions{.learning_rate = 0}, "adam", "learning_rate", "= 0", "> 0"},
      {AdamOptions{.beta1 = 1}, "adam", "beta1", "= 1", "0 <= beta1 < 1"},
      {AdamOptions{.beta1 = kNan}, "adam", "beta1", "= nan", "0 <= beta1 < 1"},
      {AdamOptions{.beta2 = 1.5}, "adam", "beta2", "= 1.5", "0 <= beta2 < 1"},
      {AdamOptions{.beta2 = -kInf}, "adam", "beta2", "= -inf", "0 <= beta2 < 1"},
      {AdamOptions{.epsilon = 0}, "adam", "epsilon", "= 0", "> 0"},
      {AdamOptions{.epsilon = kNan}, "adam", "epsilon", "= nan", "> 0"},
      {AdamOptions{.weight_decay = kInf}, "adam", "weight_decay", "= inf", ">= 0"},
      {AdamWOptions{.learning_rate = -kInf}, "adamw", "learning_rate", "= -inf", "> 0"},
      {AdamWOptions{.beta2 = 1}, "adamw", "beta2", "= 1", "0 <= beta2 < 1"},
      {AdamWOptions{.epsilon = -1e-8}, "adamw", "epsilon", "= -1e-08", "> 0"},
      {AdamWOptions{.weight_decay = -0.01}, "adamw", "weight_decay", "= -0.01", ">= 0"},
      {AdagradOptions{.learning_rate = kNan}, "adagrad", "learning_rate", "= nan", "> 0"},
      {AdagradOptions{.initial_accumulator = -1}, "adagrad", "initial_accumulator", "= -1", ">= 0"},
      {AdagradOptions{.epsilon = 0}, "adagrad", "epsilon", "= 0", "> 0"},
      {AdagradOptions{.weight_decay = kInf}, "adagrad", "weight_decay", "= inf", ">= 0"},
      {FtrlOptions{.learning_rate = 0}, "ftrl", "learning_rate", "= 0", "> 0"},
      {FtrlOptions{.beta = -1}, "ftrl", "beta", "= -1", ">= 0"},
      {FtrlOptions{.l1 = kNan}, "ftrl", "l1", "= nan", ">= 0"},
      {FtrlOptions{.l2 = -0.5}, "ftrl", "l2", "= -0.5", ">= 0"},
      {FtrlOptions{.initial_accumulator = 0}, "ftrl", "initial_accumulator", "= 0", "> 0"},
      {RmspropOptions{.rho = 1}, "rmsprop", "rho", "= 1", "0 <= rho < 1"},
      {RmspropOptions{.momentum = kNan}, "rmsprop", "momentum", "= nan", "0 <= momentum < 1"},
      {AdadeltaOptions{.epsilon = 0}, "adadelta", "epsilon", "= 0", "> 0"},
      {AdamaxOptions{.beta2 = 1}, "adamax", "beta2", "= 1", "0 <= beta2 < 1"},
      {NadamOptions{.momentum_decay = 2}, "nadam", "momentum_decay", "= 2", "<= 1"},
      {NadamOptions{.momentum_decay = -1}, "nadam", "momentum_decay", "= -1", ">= 0"},
      {LionOptions{.weight_decay = -1}, "lion", "weight_decay", "= -1", ">= 0"},
      {LarsOptions{.trust = 0}, "lars", "trust", "= 0", "> 0"},
      {LambOptions{.beta1 = kInf}, "lamb", "beta1", "= inf", "0 <= beta1 < 1"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(test::message_of<UsageError>([&] { Rule rule(c.options); }),
                AllOf(HasSubstr(std::string("optimizer ") + c.rule), HasSubstr(c.field),
                      HasSubstr(c.value), HasSubstr(c.range)));
}

TEST(Rule, EdgesOfTheRangesAreValid) {
  EXPECT_NO_THROW(sgd({.learning_rate = 1e-30, .momentum = 0, .weight_decay = 0}));
  EXPECT_NO_THROW(sgd({.learning_rate = 100, .momentum = 0.999999, .nesterov = true}));
  EXPECT_NO_THROW(adam({.beta1 = 0, .beta2 = 0}));
  EXPECT_NO_THROW(adamw({.weight_decay = 0}));
}

TEST(Rule, ByName) {
  EXPECT_EQ(rule_by_name("sgd").learning_rate(), 0.01);
  EXPECT_EQ(rule_by_name("adam").learning_rate(), 1e-3);
  EXPECT_EQ(rule_by_name("adamw", 0.5).name(), "adamw");
  for (const std::string& name : rule_names()) EXPECT_EQ(rule_by_name(name).name(), name);
  EXPECT_EQ(rule_by_name("adamw", 0.5).learning_rate(), 0.5);
  EXPECT_EQ(rule_by_name("adam", -1).learning_rate(), 1e-3);
  EXPECT_EQ(
      test::message_of<UsageError>([] { rule_by_name("adm"); }),
      "unknown optimizer \"adm\"; did you mean \"adam\"? Known: sgd, adam, adamw, adagrad, ftrl, "
      "rmsprop, adadelta, adamax, nadam, lion, lars, lamb");
  EXPECT_THAT(test::message_of<UsageError>([] { rule_by_name("adam", kNan); }),
              HasSubstr("learning_rate = nan"));
}

TEST(Rule, ScalarsCountAndMultiply) {
  const Rule rule = adam({.beta1 = 0.5, .beta2 = 0.25});
  StepScalars scalars;
  for (int t = 1; t <= 5; ++t) {
    scalars = rule.next(scalars, 0.1 * t);
    EXPECT_EQ(scalars.count, t);
    EXPECT_EQ(scalars.learning_rate, 0.1 * t);
    EXPECT_EQ(scalars.beta1_power, std::pow(0.5, t));  // exact: powers of two
    EXPECT_EQ(scalars.beta2_power, std::pow(0.25, t));
  }
  EXPECT_EQ(sgd().next({}, 0.0).count, 1);  // a schedule may end at 0
  EXPECT_THAT(test::message_of<UsageError>([] { ftrl().next({}, 0.0); }), HasSubstr("ftrl"));
  EXPECT_THAT(test::message_of<UsageError>([] { sgd().next({}, kNan); }),
              HasSubstr("learning_rate"));
  EXPECT_THAT(test::message_of<UsageError>([] { adam().next({}, -1); }),
              HasSubstr("learning_rate"));
}

TEST(Rule, UpdateRefusesWrongDtypesAndStates) {
  std::vector<float> p(4), g(4), m(4), v(4);
  void* const states[] = {m.data(), v.data()};
  const StepScalars scalars = adam().next({}, 0.1);
  for (DType dtype : {DType::float16, DType::bfloat16, DType::int32})
    EXPECT_THAT(test::message_of<UsageError>(
                    [&] { adam().update(dtype, p.data(), g.data(), states, 4, scalars); }),
                AllOf(HasSubstr(std::string(name_of(dtype))), HasSubstr("float32 or float64")));
  const auto update = [&](const Rule& rule, size_t num_states, int64_t n, const StepScalars& step) {
    rule.update(DType::float32, p.data(), g.data(), std::span(states, num_states), n, step);
  };
  EXPECT_THROW(update(adam(), 1, 4, scalars), Error);
  EXPECT_THROW(update(sgd(), 1, 4, scalars), Error);
  EXPECT_THROW(update(sgd({.momentum = 0.9}), 0, 4, scalars), Error);
  EXPECT_THROW(update(adam(), 2, -1, scalars), Error);
  EXPECT_THROW(update(adam(), 2, 4, StepScalars{}), Error);  // count 0: next() was not called
  EXPECT_NO_THROW(update(adam(), 2, 4, scalars));
  void* const no_states[] = {nullptr, nullptr};
  EXPECT_NO_THROW(adam().update(DType::float32, nullptr, nullptr, no_states, 0, scalars));
}

}  // namespace
}  // namespace tutti::optim
