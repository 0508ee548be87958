/// Two ways of doing the same, measured in turn on a machine that others share.
/// Thread rule: the main thread alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace tutti::bench {

/// The middle one of an odd number, the upper middle one of an even number; values: one or more.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.at(values.size() / 2);
}

/// Medians over the rounds; of the ratios, other / one in the same round, least and most too.
struct InTurn {
  double one = 0;
  double other = 0;
  double ratio = 0;
  double least = 0;
  double most = 0;
};

/// Both give what a round took, in any unit; rounds >= 1.
template <class One, class Other>
InTurn in_turn(int64_t rounds, One&& one, Other&& other) {
  std::vector<double> ones, others, ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    ones.push_back(one());
    others.push_back(other());
    ratios.push_back(others.back() / ones.back());
  }
  const auto [least, most] = std::ranges::minmax(ratios);
  return {median(ones), median(others), median(ratios), least, most};
}

/// The word at `place` of the command line as a number; 0 where it is none.
inline int64_t number_at(int argc, char** argv, int place, int64_t otherwise) {
  return argc > place ? std::atoll(argv[place]) : otherwise;
}

}  // namespace tutti::bench
