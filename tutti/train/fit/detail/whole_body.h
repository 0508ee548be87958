/// Bodies of a replica that has the whole model, and takes its part of a batch at once. Not for
/// users. Thread rule: that of StepBody.
#pragma once

#include <memory>

#include "tutti/nn/sample_context.h"
#include "tutti/train/fit/detail/body.h"
#include "tutti/train/model/detail/late_totals.h"

namespace tutti::detail {

class WholeBody : public StepBody {
 public:
  explicit WholeBody(Fit& fit);
  void train(const BatchOfStep& of) override;

 protected:
  /// Forward of the batch, with what it adds up; the loss to minimise.
  virtual at::Tensor loss(const BatchOfStep& of, Tensors columns, const Divisors& by) = 0;

  bool has_none(const BatchOfStep& of) const {
    return of.batch.local_size(of.replica) == 0 && !meets_;
  }
  /// Rows of the step, however many batches it has: dropout is that of one large batch.
  nn::SamplePlace place_of(const BatchOfStep& of) const;

  Fit& fit_;

 private:
  void update(const BatchOfStep& of, const at::Tensor& loss);

  bool meets_;  // replicas without samples take part in forward
};

/// The host queues a step and goes on; whether its loss is finite decides on the device, and its
/// figures come later.
class LateBody : public WholeBody {
 public:
  using WholeBody::WholeBody;

 protected:
  at::Tensor loss(const BatchOfStep& of, Tensors columns, const Divisors& by) override;
  void leave_out_if_bad(const BatchOfStep& of, const Tensors& losses) const;
  void expect_figures(const BatchOfStep& of, std::shared_ptr<const OwnBatch> host,
                      const Tensors& losses, const Tensors& outputs,
                      const AddedMetrics& added = {});

 private:
  void read_figures(ReplicaContext replica, const Epoch& epoch, const DistributedBatch& batch,
                    Figures figures, Tally& tally);
};

}  // namespace tutti::detail
