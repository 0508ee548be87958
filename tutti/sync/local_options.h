/// LocalUpdates: replicas that train on their own and meet every so many updates, to average what
/// they have learnt. docs/guide/less_communication.md.
///
/// Without LibTorch. Thread rule: plain values.
#pragma once

#include <cstdint>

namespace tutti {

/// The step that the averaged change of the replicas' parameters is taken as the gradient of.
struct OuterOptimizer {
  double learning_rate =
      1;                  ///< above 0, at most 10; 1 without momentum: parameters become the mean
  double momentum = 0;    ///< 0 to 1, exclusive
  bool nesterov = false;  ///< needs a momentum
};

struct LocalUpdates {
  int64_t every = 1;  ///< updates of a replica's own between two averagings; 1 to 10^9
  OuterOptimizer outer{};
  int64_t start_step = 0;  ///< updates before this one are made together, as without LocalUpdates
};

/// UsageError for what is out of range.
void check_local(const LocalUpdates& local);

}  // namespace tutti
