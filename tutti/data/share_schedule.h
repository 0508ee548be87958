/// ShareSchedule: which shares of a batch the replicas have, from which step on. One list is the
/// truth for whoever trains by it: the replicas themselves, checkpoints, and a file (--shares
/// file:PATH) by which any other strategy gives the same bits. Thread rule: a plain value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

/// Relative whole numbers, one a replica, each from 1 to kMostShare.
struct SharesFrom {
  int64_t step = 0;  ///< updates that the optimizer has made before
  std::vector<int64_t> shares;
  bool operator==(const SharesFrom&) const = default;
};

inline constexpr int64_t kMostShare = int64_t{1} << 31;

struct ShareSchedule {
  std::vector<SharesFrom> changes;  ///< by step; before the first one shares are equal

  /// Those of a step, as share() takes them; empty: equal.
  std::vector<double> at(int64_t step) const;
  /// The step of the first change after `step`; -1: there is none.
  int64_t next_change(int64_t step) const;
  /// Forgets what changes at `step` or later.
  void cut(int64_t step);

  /// What is wrong with it for so many replicas: field, got, expected; "": nothing.
  std::string objection(int replicas) const;

  std::string to_json(int replicas) const;  ///< docs/formats/shares.md
  /// Throws UsageError naming `path`, the field, what was got and expected, for what is no such
  /// file, or is of another number of replicas.
  static ShareSchedule from_json(std::string_view text, int replicas,
                                 const std::filesystem::path& path);

  bool operator==(const ShareSchedule&) const = default;
};

}  // namespace tutti::data
