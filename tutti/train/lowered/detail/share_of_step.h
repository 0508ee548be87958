/// What a step is scaled and filled up by, of which each process has a share; not for users.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::detail {

/// Of the parts of one process, or of all.
struct ShareOfStep {
  int64_t rows = 0;    ///< of all parts
  int64_t most = 0;    ///< of the largest
  double labels = 0;   ///< elements of targets
  double counted = 0;  ///< labels that the loss counts
  double rate = 0;     ///< learning rate; of all: process 0's
};

struct WholeSteps {
  std::vector<int64_t> rows_before;  ///< by step: of the processes before this one
  std::vector<ShareOfStep> all;      ///< by step
};

/// As processes bring them.
std::string bytes_of(const std::vector<ShareOfStep>& shares);

/// Of what each process has brought, of as many steps each, seen from `process`.
WholeSteps whole_of(const std::vector<std::string>& by_process, int process);

}  // namespace tutti::detail
