#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tutti/sync/slots.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;

ParameterSlot slot(std::string name, int64_t elements, DType dtype = DType::float32,
                   bool trained = true) {
  return {.name = std::move(name),
          .shape = {elements},
          .dtype = dtype,
          .num_elements = elements,
          .trained = trained};
}

TEST(Slots, EveryParameterStartsOnA64ByteLine) {
  const Slots layout = Slots::of({slot("a", 1), slot("b", 17), slot("c", 3, DType::float64),
                                  slot("empty", 0), slot("d", 1000, DType::bfloat16)});
  int64_t end = 0;
  for (const auto& entry : layout.slots) {
    EXPECT_EQ(entry.offset_bytes % 64, 0) << entry.name;
    EXPECT_GE(entry.offset_bytes, end) << entry.name;
    end = entry.offset_bytes + entry.num_elements * size_of(entry.dtype);
  }
  EXPECT_GE(layout.total_bytes, end);
  EXPECT_EQ(layout.total_bytes % 64, 0);
}

struct CutCase {
  const char* name;
  std::vector<int64_t> elements;
  std::vector<double> shares;
};

class SlotsCut : public ::testing::TestWithParam<CutCase> {};

TEST_P(SlotsCut, CoversEveryElementOnceOnTheBlockGrid) {
  std::vector<ParameterSlot> slots;
  for (size_t i = 0; i < GetParam().elements.size(); ++i)
    slots.push_back(slot(std::to_string(i), GetParam().elements[i]));
  const Slots layout = Slots::of(slots);
  const auto owners = layout.cut(GetParam().shares);
  ASSERT_EQ(owners.size(), GetParam().shares.size());
  std::vector<std::vector<int>> covered;
  for (int64_t count : GetParam().elements) covered.emplace_back(count, 0);
  for (const auto& stretches : owners)
    for (const Stretch& stretch : stretches) {
      EXPECT_EQ(stretch.begin % kBlockElements, 0);
      const int64_t all = GetParam().elements[stretch.parameter];
      EXPECT_TRUE(stretch.end % kBlockElements == 0 || stretch.end == all);
      for (int64_t i = stretch.begin; i < stretch.end; ++i) ++covered[stretch.parameter][i];
    }
  for (const auto& parameter : covered)
    for (int times : parameter) ASSERT_EQ(times, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Tables, SlotsCut,
    ::testing::Values(CutCase{"one owner", {5, 3000, 1}, {1}},
                      CutCase{"two owners", {1024, 1024, 100}, {1, 1}},
                      CutCase{"more owners than blocks", {10, 10}, {1, 1, 1, 1, 1}},
                      CutCase{"no elements", {0, 0}, {1, 1}},
                      CutCase{"unequal", {100000, 7}, {3, 1}},
                      CutCase{"primes", {7919, 104729}, {1, 1, 1}}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name)
        if (c == ' ') c = '_';
      return name;
    });

TEST(SlotsCutShares, FollowTheShares) {
  const Slots layout = Slots::of({slot("w", 1024 * 1000)});
  const auto owners = layout.cut(std::vector<double>{3, 1});
  EXPECT_THAT(owners[0], ElementsAre(Stretch{0, 0, 1024 * 750}));
  EXPECT_THAT(owners[1], ElementsAre(Stretch{0, 1024 * 750, 1024 * 1000}));
}

TEST(SlotsCutShares, WeighBytesNotElementsAndLeaveFrozenOut) {
  const Slots layout =
      Slots::of({slot("half", 4096, DType::bfloat16), slot("double", 1024, DType::float64),
                 slot("frozen", 1 << 20, DType::float32, false)});
  const auto owners = layout.cut(std::vector<double>{1, 1});
  EXPECT_THAT(owners[0], ElementsAre(Stretch{0, 0, 4096}));
  EXPECT_THAT(owners[1], ElementsAre(Stretch{1, 0, 1024}));
}

TEST(Slots, DescribesOneLineAParameter) {
  EXPECT_EQ(Slots::of({slot("fc.weight", 6)}).describe(), "fc.weight float32 [6]\n");
}

}  // namespace
}  // namespace tutti
