#include "tutti/base/typed.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(Typed, AllOfATextIsTheNumber) {
  EXPECT_EQ(number_in<int>("-12"), -12);
  EXPECT_EQ(number_in<double>("0.5"), 0.5);
  for (const char* wrong : {"", "1x", " 1", "1 ", "x", "99999999999"})
    EXPECT_EQ(number_in<int>(wrong), std::nullopt) << wrong;
  EXPECT_EQ(number_in<uint64_t>("-1"), std::nullopt);
}

TEST(Typed, WhatIsNotFiniteIsNoNumber) {
  for (const char* wrong : {"nan", "-nan", "inf", "-inf", "infinity", "NaN", "1e400", "-1e400"}) {
    EXPECT_EQ(number_in<double>(wrong), std::nullopt) << wrong;
    EXPECT_EQ(number_in<float>(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(number_in<double>("-1e300"), -1e300);
}

TEST(Typed, WhatFloat32LosesIsToldApart) {
  for (const double kept : {0.0, 1.0, -1.0, 1.2e-38, -1.2e-38, 3.4e38, -3.4e38})
    EXPECT_TRUE(fits_float32(kept)) << kept;
  for (const double lost :
       {1e-46, -1e-46, 1e-39, 3.5e38, -3.5e38, 1e300, double(NAN), double(INFINITY)})
    EXPECT_FALSE(fits_float32(lost)) << lost;
}

TEST(Typed, SizesHaveUnits) {
  EXPECT_EQ(size_in("0"), 0);
  EXPECT_EQ(size_in("8"), 8);
  EXPECT_EQ(size_in("1K"), 1024);
  EXPECT_EQ(size_in("3M"), int64_t{3} << 20);
  EXPECT_EQ(size_in("1024G"), int64_t{1} << 40);
  for (const char* wrong : {"", "K", "1KB", "-8", "1.5K", "1025G", "9999999999G"})
    EXPECT_EQ(size_in(wrong), std::nullopt) << wrong;
}

TEST(Typed, PartsStandBetweenSeparators) {
  EXPECT_THAT(parts_of("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(parts_of("min:4K:8", ':'), ElementsAre("min", "4K", "8"));
  EXPECT_THAT(parts_of("", ','), ElementsAre(""));
  EXPECT_THAT(parts_of("a,", ','), ElementsAre("a", ""));
}

}  // namespace
}  // namespace tutti
