/// The conformance suite's fixture: engines of one kind and size, and how results are compared.
/// engines.cpp instantiates the suite, one line an engine.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "tests/support/collective_oracle.h"
#include "tests/support/comm.h"

namespace tutti::test {

struct Case {
  const char* engine;
  int ranks;
};

class Conformance : public testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kSlotBytes = 4096;

  int ranks() const { return GetParam().ranks; }

  std::vector<std::shared_ptr<Engine>> engines() const {
    return make_engines(GetParam().engine, ranks(), {.slot_bytes = kSlotBytes});
  }

  /// Around every boundary: nothing, parts of one element, inline, small and staging slots.
  std::vector<int64_t> lengths(DType dtype) const {
    const int64_t n = ranks();
    std::vector<int64_t> all = {0, 1, n, n + 1, 997, n > 8 ? 3'001 : 20'011};
    if (n > 1) all.push_back(n - 1);
    for (int64_t bytes :
         {int64_t{40}, 2 * 8192 / std::max<int64_t>(n, 2), kSlotBytes, 3 * kSlotBytes})
      for (int64_t extra : {-1, 0, 1}) all.push_back(bytes / size_of(dtype) + extra);
    return all;
  }

  /// Fewer: nothing, one, in a line, in a slot, in several.
  std::vector<int64_t> few_lengths(DType dtype) const {
    return {0, 1, 97, 2 * kSlotBytes / size_of(dtype) + 1};
  }

  /// Lists of counts with zeros, short and long parts: of all ranks, or a list for each.
  std::vector<int64_t> some_counts(uint32_t seed, int64_t longest) const {
    std::mt19937 random(seed);
    std::vector<int64_t> counts;
    for (int r = 0; r < ranks(); ++r) {
      const int64_t any = static_cast<int64_t>(random() % static_cast<uint32_t>(longest + 1));
      counts.push_back(random() % 3 == 0 ? 0 : any);
    }
    return counts;
  }

  /// Every rank makes the call; what each holds must be what the oracle says, byte for byte.
  void expect_conforms(const std::vector<std::shared_ptr<Engine>>& members, const Call& call,
                       uint32_t seed = 1) const {
    const auto before = make_all_buffers(call, ranks(), seed);
    auto buffers = before;
    run_all_members(members, [&](Group group) { carry_out(call, group, buffers[group.rank()]); });
    for (int r = 0; r < ranks(); ++r)
      expect_same(call.dtype, buffers[r].output, expected_output(call, before, r),
                  fmt::format("rank {}: {}", r, words_of(call)));
  }

  static void expect_same(DType dtype, const Bytes& got, const Bytes& expected,
                          const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    EXPECT_EQ(first_difference(dtype, got.data(), expected.data(),
                               static_cast<int64_t>(got.size()) / size_of(dtype)),
              "")
        << what;
  }
};

/// Tests of engines whose members share memory.
class SharedMemoryConformance : public Conformance {};

}  // namespace tutti::test
