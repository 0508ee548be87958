/// CapturedSteps: a training step that the host queues in its first few rounds, and that its device
/// then does by itself from inputs alone: StrategyOptions::step_graph. Not for users, who call
/// Optimizer::minimize with inputs.
#pragma once

#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tutti/queues/queue.h"
#include "tutti/queues/step_graph/step_graph.h"
#include "tutti/sync/updater_parts.h"

namespace tutti::detail {

/// Of the only replica of a world. Thread rule: that replica's thread; forget() between runs.
class CapturedSteps {
 public:
  /// Forward, backward and update from these inputs; gives what the caller wants to read of it.
  using Step = std::function<std::vector<at::Tensor>(at::TensorList inputs)>;

  /// In them LibTorch and its libraries choose kernels and take workspaces, which a capture cannot.
  static constexpr int kWarmUp = 3;

  /// `updater` takes part: it is told of steps that the host does not make.
  CapturedSteps(std::shared_ptr<StepCapture> updater, DeviceQueue queue);

  /// One step. The first inputs that have been there kWarmUp times, by shapes and dtypes, are those
  /// that it is captured for; others go on as ever, which the log says once for each. `step` is
  /// called unless it is a replay; what is returned lies in the graph's memory until the next step.
  /// Inputs are on the queue's device: UsageError. Error, naming the cause, where a step cannot be
  /// captured.
  std::vector<at::Tensor> run(at::TensorList inputs, const Step& step);

  /// Begins anew: what was captured writes to memory that is used no more.
  void forget();

 private:
  /// Shapes and dtypes.
  using Kind = std::vector<std::vector<int64_t>>;
  static Kind kind_of(at::TensorList inputs);
  std::vector<at::Tensor> capture(at::TensorList inputs, const Step& step);
  void replay(at::TensorList inputs);

  std::shared_ptr<StepCapture> updater_;
  DeviceQueue queue_;
  std::map<Kind, int> seen_;
  std::set<Kind> go_without_;  // as the log has said
  Kind captured_;
  std::unique_ptr<StepGraph> graph_;
  std::vector<at::Tensor> inputs_, outputs_;  // the graph's own
};

/// Whether this thread is in a step that is being captured: what the host computes in it would be
/// the same in every replay.
bool captures_step() noexcept;

}  // namespace tutti::detail
