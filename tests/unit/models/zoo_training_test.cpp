// Every network of the zoo trains under every strategy that one process can have.
#include "tests/support/zoo_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tutti {
namespace {

class ZooTrains : public ::testing::TestWithParam<test::SmallNetwork> {};

TEST_P(ZooTrains, TheSameWeightsUnderEveryStrategy) {
  const auto expected = test::train_of_zoo(GetParam(), "one_device");  // the parts in turn
  EXPECT_NE(expected.before, expected.after);
  EXPECT_TRUE(std::isfinite(expected.loss));
  for (const char* kind : {"mirrored", "central_storage"}) {
    const auto got = test::train_of_zoo(GetParam(), kind);
    EXPECT_EQ(got.before, expected.before) << kind;
    EXPECT_EQ(got.after, expected.after) << kind;
    EXPECT_EQ(got.loss, expected.loss) << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooTrains, ::testing::ValuesIn(test::small_zoo()),
                         [](const auto& info) { return info.param.name; });

TEST(Zoo, NoNetworkIsLeftOut) {
  std::set<std::string> trained{"cnn", "linear_regression"};  // doodle_cnn, and no network
  for (const auto& network : test::small_zoo()) trained.insert(network.name);
  EXPECT_EQ(trained, std::set(models::model_names().begin(), models::model_names().end()));
}

}  // namespace
}  // namespace tutti
