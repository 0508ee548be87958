/// StepBody: what a replica does with a batch of a step: forward, backward, and its part of the
/// update. Chosen by where the replica computes and what of the model it has; how replicas go
/// through the steps is a Pace's. Not for users. Thread rule: that of the replica.
#pragma once

#include <memory>
#include <vector>

#include "tutti/train/fit/detail/counted_input.h"
#include "tutti/train/fit/detail/tally.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

class Fit;
struct Epoch;

/// A batch of a step, of one replica.
struct BatchOfStep {
  ReplicaContext& replica;
  const Forward& forward;
  const Epoch& epoch;
  const DistributedBatch& batch;
  StepInput& input;
  Tally& tally;
};

class StepBody {
 public:
  virtual ~StepBody() = default;

  /// What comes before the last batch of a step is not communicated.
  virtual void train(const BatchOfStep& of) = 0;

  /// What rank 0's callbacks and progress see of the totals of its first replica.
  virtual const Totals& shown(const Totals& own) const { return own; }
};

/// That of a local replica in the strategy's world as it is now.
std::unique_ptr<StepBody> body_of(Fit& fit, int local);

/// One for each way (body/).
std::unique_ptr<StepBody> make_eager_body(Fit& fit);  ///< on the CPU
std::unique_ptr<StepBody> make_late_body(Fit& fit);   ///< on a device
/// On a device that makes most steps by itself (StrategyOptions::step_graph).
std::unique_ptr<StepBody> make_graph_body(Fit& fit);
/// Of microbatches, on ranks that may have parts of the model.
std::unique_ptr<StepBody> make_body_in_parts(Fit& fit);

}  // namespace tutti::detail
