/// Carries out a Schedule for all ranks at once, round by round, on numbers that remember how they
/// were added. Slow and obvious; shares no line with the engines.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "tutti/comm/schedule/schedule.h"

namespace tutti::test {

/// "a + b" of symbols: commutative, as the addition of floats is, but not associative, so that two
/// sums are equal only when the same tree made them.
inline uint64_t symbolic_sum(uint64_t a, uint64_t b) {
  uint64_t x = (a + b) * 0x9e3779b97f4a7c15u + (a ^ b);
  x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 29) * 0x94d049bb133111ebu + a * b;
  return x ^ x >> 32;
}

struct Replay {
  using Sum = uint64_t (*)(uint64_t, uint64_t);

  std::vector<Schedule> schedules;  ///< one per rank
  Sum sum = symbolic_sum;
  const ReductionShape* shape = nullptr;             ///< for Action::reduce
  std::vector<std::vector<uint64_t>> input, output;  ///< one per rank; all the same where in place
  bool in_place = false;                             ///< input and output are one buffer: `output`

  std::vector<int64_t> sent;      ///< elements, per rank
  std::vector<int64_t> messages;  ///< per rank
  int64_t most_rounds = 0;

  /// Carries all out. False (with a test failure) at the first send or receive without its other
  /// half in the same round, or step outside its buffer.
  bool run();

 private:
  std::vector<uint64_t>& buffer(int rank, Space space) {
    if (space == Space::scratch) return scratch_[rank];
    return space == Space::input && !in_place ? input[rank] : output[rank];
  }
  bool inside(int rank, Space space, int64_t begin, int64_t count) {
    const auto size = static_cast<int64_t>(buffer(rank, space).size());
    EXPECT_TRUE(begin >= 0 && count >= 0 && begin + count <= size)
        << "rank " << rank << ": " << begin << " + " << count << " of " << size;
    return !testing::Test::HasFailure();
  }
  bool untouched_while_sent(int rank, const std::vector<Step>& steps);
  bool send_all(int64_t round);
  bool receive_all(int rank);
  void finish_round(int rank);

  std::vector<std::vector<uint64_t>> scratch_;
  std::vector<std::vector<Step>> steps_;
  std::unordered_map<uint64_t, std::deque<std::vector<uint64_t>>> wires_;
  std::unordered_map<int, std::vector<uint64_t>> kept_;  // of the rank at work
};

inline bool Replay::run() {
  const size_t n = schedules.size();
  scratch_.resize(n);
  steps_.resize(n);
  sent.assign(n, 0);
  messages.assign(n, 0);
  for (size_t r = 0; r < n; ++r) {
    scratch_[r].resize(static_cast<size_t>(schedules[r].scratch_elements()));
    most_rounds = std::max(most_rounds, schedules[r].num_rounds());
  }
  for (int64_t round = 0; round < most_rounds; ++round) {
    if (!send_all(round)) return false;
    for (size_t r = 0; r < n; ++r) {
      kept_.clear();
      if (!receive_all(static_cast<int>(r))) return false;
      finish_round(static_cast<int>(r));
    }
    for (const auto& [pair, wire] : wires_) EXPECT_TRUE(wire.empty()) << "round " << round;
    if (testing::Test::HasFailure()) return false;
    wires_.clear();
  }
  return true;
}

inline bool Replay::send_all(int64_t round) {
  const auto n = static_cast<int>(schedules.size());
  for (int r = 0; r < n; ++r) {
    steps_[r].clear();
    if (round < schedules[r].num_rounds()) schedules[r].round(round, steps_[r]);
    if (n <= 40 && !untouched_while_sent(r, steps_[r])) return false;
    for (const Step& step : steps_[r]) {
      if (step.action != Step::Action::send) continue;
      if (!inside(r, step.space, step.begin, step.count)) return false;
      const auto from = buffer(r, step.space).begin() + step.begin;
      wires_[uint64_t(r) << 32 | uint64_t(step.peer)].emplace_back(from, from + step.count);
      sent[r] += step.count;
      ++messages[r];
    }
  }
  return true;
}

// What is being sent may not change before the round ends.
inline bool Replay::untouched_while_sent(int rank, const std::vector<Step>& steps) {
  const auto same = [&](Space a, Space b) { return &buffer(rank, a) == &buffer(rank, b); };
  for (const Step& a : steps)
    for (const Step& b : steps)
      if (a.action == Step::Action::send &&
          (b.action == Step::Action::receive || b.action == Step::Action::add) &&
          same(a.space, b.space)) {
        EXPECT_TRUE(a.begin + a.count <= b.begin || b.begin + b.count <= a.begin)
            << "rank " << rank << " changes what it sends";
      }
  return !testing::Test::HasFailure();
}

inline bool Replay::receive_all(int rank) {
  for (const Step& step : steps_[rank]) {
    const bool takes = step.action == Step::Action::receive || step.action == Step::Action::add ||
                       step.action == Step::Action::keep;
    if (!takes) continue;
    auto& wire = wires_[uint64_t(step.peer) << 32 | uint64_t(rank)];
    EXPECT_FALSE(wire.empty()) << "rank " << rank << " waits for rank " << step.peer;
    if (wire.empty()) return false;
    std::vector<uint64_t> values = std::move(wire.front());
    wire.pop_front();
    EXPECT_EQ(static_cast<int64_t>(values.size()), step.count)
        << "rank " << step.peer << " to rank " << rank;
    if (testing::Test::HasFailure()) return false;
    if (step.action == Step::Action::keep) {
      EXPECT_LE(step.count, schedules[rank].kept_elements());
      EXPECT_TRUE(kept_.emplace(step.peer, std::move(values)).second);
      continue;
    }
    if (!inside(rank, step.space, step.begin, step.count)) return false;
    const bool adds = step.action == Step::Action::add;
    if (adds && !inside(rank, step.operand, step.from, step.count)) return false;
    for (int64_t i = 0; i < step.count; ++i)
      buffer(rank, step.space)[step.begin + i] =
          adds ? sum(buffer(rank, step.operand)[step.from + i], values[i]) : values[i];
  }
  return true;
}

inline void Replay::finish_round(int rank) {
  for (const Step& step : steps_[rank]) {
    for (int64_t i = 0; i < step.count; ++i) {
      if (step.action == Step::Action::copy)
        buffer(rank, step.space)[step.begin + i] = buffer(rank, step.operand)[step.from + i];
      if (step.action == Step::Action::combine) {
        auto& into = buffer(rank, step.space)[step.begin + i];
        into = sum(into, kept_.at(step.peer)[i]);
      }
      if (step.action != Step::Action::reduce) continue;
      std::vector<uint64_t> partial(schedules.size());
      for (size_t r = 0; r < partial.size(); ++r)
        partial[r] = static_cast<int>(r) == rank ? buffer(rank, Space::input)[step.from + i]
                                                 : kept_.at(static_cast<int>(r)).at(i);
      for (const auto& add : shape->steps())
        partial[add.into] = sum(partial[add.into], partial[add.from]);
      buffer(rank, step.space)[step.begin + i] = partial[0];
    }
  }
}

}  // namespace tutti::test
