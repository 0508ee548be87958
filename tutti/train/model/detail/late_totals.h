/// Losses and metrics of batches on a device, which the host adds up once their figures have come
/// (LateReads), with the code of the CPU: no step waits for them. Not for users.
/// Thread rule: that of the replica.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tutti/queues/late_reads.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// A batch with its memory.
struct OwnBatch {
  OwnBatch() = default;
  OwnBatch(const OwnBatch&) = delete;
  Tensors columns;
  BatchParts parts;  ///< of `columns`
};

/// A replica's part of a batch on the host, as parts_of() has it.
std::shared_ptr<const OwnBatch> host_batch(Tensors columns, int64_t num_inputs, const Goals& goals,
                                           const LabelWeights& by_label = {});

/// A copy of it on the replica's device (ReplicaContext::on_device).
std::shared_ptr<const OwnBatch> device_batch(const ReplicaContext& replica, const BatchParts& host);

/// Losses of the samples, [batch] for each goal, with a graph. Values of targets are looked at
/// before, on the `host`.
Tensors losses_on_device(const Goals& goals, const Tensors& outputs, const BatchParts& host,
                         const BatchParts& there);

/// The loss to minimise, with a graph: the sum of each goal's losses times its scale, with the
/// weights of the samples that `parts` has.
at::Tensor scaled_loss(const Goals& goals, const Tensors& losses, const BatchParts& parts,
                       std::span<const double> scales);
/// All by one scale.
at::Tensor scaled_loss(const Goals& goals, const Tensors& losses, const BatchParts& parts,
                       double scale);

/// True, on the device, where one of the losses is not finite.
at::Tensor any_not_finite(const Tensors& losses);

/// What of a batch has come to the host.
struct Figures {
  std::shared_ptr<const OwnBatch> batch;  ///< the host's
  Tensors losses;                         ///< of its samples, [batch] for each goal
  /// Those that metrics need, or that are small; else undefined.
  Tensors outputs;
  std::vector<double> sums;  ///< of the losses, for each goal
  AddedMetrics added{};

  bool finite(const Goals& goals) const;
  /// As the CPU does.
  void add_to(Totals& totals, const Goals& goals) const;
};

/// `got` gets the figures of a batch in a later poll() or settle().
void read_later(LateReads& late, const Goals& goals, std::shared_ptr<const OwnBatch> host,
                const Tensors& losses, const Tensors& outputs, const AddedMetrics& added,
                std::function<void(Figures)> got);

}  // namespace tutti::detail
