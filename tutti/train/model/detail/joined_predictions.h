/// What is behind Predictor::batched(); not for users. Thread rule: any threads at the same time.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include "tutti/base/joined_calls.h"
#include "tutti/train/model/predictor.h"

namespace tutti {

class ExportedModule;

namespace detail {

/// Throws UsageError where rows of several calls cannot be one batch of `most` rows: an input whose
/// first size was fixed at export, is not that of all, or ends below.
void require_joinable(const ExportedModule& module, int64_t most);

/// Computes calls of many threads by as few forward passes as their inputs allow.
class JoinedPredictions {
 public:
  using Forward = std::function<std::vector<at::Tensor>(at::TensorList)>;

  /// forward  of a batch: as many rows come out of each output; called in one thread, without
  ///          gradients
  JoinedPredictions(Forward forward, const BatchingOptions& options);

  /// What `forward` gives for these, one or more, all of as many rows; in memory of its own.
  /// Throws what it throws for these alone; Timeout.
  std::vector<at::Tensor> ask(at::TensorList inputs);

  CallCounts counts() const { return calls_.counts(); }

 private:
  const Millis limit_;
  JoinedCalls calls_;
};

}  // namespace detail
}  // namespace tutti
