/// The one order of summation: a fixed binary tree over the replicas of a job.
///
/// The replicas of a host combine in aligned blocks of 2, 4, 8, ...; what is left over joins one
/// level up; then the hosts combine in the same way. So 4 threads, 4 processes and 2 x 2 hosts add
/// in the same order, and give the same bits. docs/design/order_of_summation.md has the reasons.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

class ReductionShape {
 public:
  /// One host with `replicas` replicas (>= 1).
  static ReductionShape flat(int replicas);
  /// Replicas per host, in rank order, each >= 1: {3, 3}, {3, 1}.
  static ReductionShape hosts(std::vector<int> replicas_per_host);
  /// Reads "4", "2x3" (2 hosts of 3) or "3+1"; throws UsageError with what was expected.
  static ReductionShape parse(std::string_view text);

  int replicas() const noexcept { return replicas_; }
  const std::vector<int>& replicas_per_host() const noexcept { return per_host_; }

  /// "4", "2x3" or "3+1": what parse() reads back.
  std::string to_string() const;

  /// One addition of the tree: partial[into] = partial[into] + partial[from]. Partials begin as the
  /// replicas' inputs, indexed by rank; after all steps partial[0] is the result.
  struct Step {
    int into = 0;
    int from = 0;
    bool operator==(const Step&) const = default;
  };
  /// The additions in an order in which they can be carried out; size() - 1 of them.
  const std::vector<Step>& steps() const noexcept { return steps_; }

  /// Whether both are the same tree, so that they give the same bits: "4" and "2x2", never "6" and
  /// "2x3".
  bool adds_like(const ReductionShape& other) const;

  bool operator==(const ReductionShape& other) const { return per_host_ == other.per_host_; }

 private:
  explicit ReductionShape(std::vector<int> per_host);

  std::vector<int> per_host_;
  int replicas_ = 0;
  std::vector<Step> steps_;
};

}  // namespace tutti
