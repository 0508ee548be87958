#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/optim/recipe.h"

#include "tests/support/message_of.h"

namespace tutti::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Recipe, PatternsFitWholeNames) {
  for (const auto& [pattern, text] :
       std::vector<std::pair<std::string, std::string>>{{"*", ""},
                                                        {"*", "a.b"},
                                                        {"*.bias", "fc.bias"},
                                                        {"a*c*e", "abcde"},
                                                        {"a*c*e", "aceace"},
                                                        {"?", "x"},
                                                        {"layer?.*", "layer1.weight"},
                                                        {"", ""},
                                                        {"**", "x"},
                                                        {"*a", "aaa"}})
    EXPECT_TRUE(fits(pattern, text)) << pattern << " " << text;
  for (const auto& [pattern, text] :
       std::vector<std::pair<std::string, std::string>>{{"", "a"},
                                                        {"*.bias", "fc.bias2"},
                                                        {"bias", "fc.bias"},
                                                        {"?", ""},
                                                        {"a*c*e", "abcd"},
                                                        {"a.c", "abc"},
                                                        {"*a*b", "ba"}})
    EXPECT_FALSE(fits(pattern, text)) << pattern << " " << text;
}

TEST(Recipe, TheFirstGroupThatFitsCounts) {
  const Recipe recipe(adamw({.weight_decay = 0.5}), {},
                      {{.pattern = "*.bias", .weight_decay = 0},
                       {.pattern = "head.*", .learning_rate_factor = 10}});
  const auto decay = [&](const char* name) {
    return std::get<AdamWOptions>(recipe.rule_for(name).options()).weight_decay;
  };
  EXPECT_EQ(decay("head.bias"), 0);
  EXPECT_EQ(decay("head.weight"), 0.5);
  EXPECT_EQ(decay("body.weight"), 0.5);
  EXPECT_EQ(recipe.group_of("head.bias")->learning_rate_factor, 1);
  EXPECT_EQ(recipe.group_of("head.weight")->learning_rate_factor, 10);
  EXPECT_EQ(recipe.group_of("body.weight"), nullptr);
}

TEST(Recipe, SaysWhatItIsBesideARule) {
  EXPECT_EQ(Recipe(adam()).more_than_a_rule(), "");
  EXPECT_THAT(Recipe(lars()).more_than_a_rule(), HasSubstr("lars"));
  EXPECT_THAT(Recipe(adam(), {.norm = 1}).more_than_a_rule(), HasSubstr("clipping"));
  EXPECT_THAT(Recipe(adam(), {}, {{.pattern = "*"}}).more_than_a_rule(), HasSubstr("groups"));
}

TEST(Recipe, BadFieldsAreNamedWithTheirRange) {
  const auto message = [](const Clip& clip, std::vector<Group> groups = {},
                          const Rule& rule = adam()) {
    return test::message_of<UsageError>([&] { Recipe(rule, clip, groups); });
  };
  EXPECT_THAT(message({.value = -1}), AllOf(HasSubstr("value = -1"), HasSubstr("> 0")));
  EXPECT_THAT(message({.norm = std::numeric_limits<double>::infinity()}), HasSubstr("norm = inf"));
  EXPECT_THAT(message({.global_norm = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("global_norm = nan"));
  EXPECT_THAT(message({.norm = 1e-46}), HasSubstr("norm = 1e-46 is out of range"));
  EXPECT_THAT(message({}, {{.pattern = "w", .learning_rate_factor = 1e39}}),
              HasSubstr("learning_rate_factor = 1e+39"));
  EXPECT_THAT(message({.value = 1, .global_norm = 2}), HasSubstr("give one"));
  EXPECT_THAT(message({}, {{.pattern = "w", .learning_rate_factor = -1}}),
              AllOf(HasSubstr("group \"w\""), HasSubstr("learning_rate_factor = -1")));
  EXPECT_THAT(message({}, {{.pattern = "w", .weight_decay = -1}}), HasSubstr("weight_decay = -1"));
  EXPECT_THAT(message({}, {{.pattern = "w", .learning_rate_factor = 0}}, ftrl()),
              HasSubstr("ftrl needs a learning rate above 0"));
  EXPECT_THAT(message({}, {{.pattern = "w", .weight_decay = 0}}, ftrl()),
              HasSubstr("optimizer ftrl has none"));
}

}  // namespace
}  // namespace tutti::optim
