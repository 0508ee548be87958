// Forward passes where several ranks compute a replica.

#include "tutti/train/model/detail/evaluation.h"

namespace tutti::detail {
namespace {

/// Some batches, which go through the stages one behind the other.
class Batches {
 public:
  Batches(const Model::State& model, ReplicaContext& replica, const MeshPass& pass, int64_t first,
          int64_t count)
      : model_(model), replica_(replica), pass_(pass) {
    const int64_t end = std::min(first + count, pass.epoch->num_batches());
    for (int64_t step = first; step < end; ++step)
      batches_.emplace_back(pass.epoch, step, pass.topology, nullptr, nullptr);
    columns_.resize(batches_.size());
  }

  std::vector<int64_t> sizes(int64_t count) const {
    std::vector<int64_t> sizes;
    for (const DistributedBatch& batch : batches_) sizes.push_back(batch.local_size(replica_));
    sizes.resize(static_cast<size_t>(count));
    return sizes;
  }

  const DistributedBatch& batch(int number) const { return batches_[static_cast<size_t>(number)]; }

  const Tensors& columns(int number) {
    Tensors& own = columns_[static_cast<size_t>(number)];
    if (own.empty()) own = batch(number).host_columns(replica_);
    return own;
  }

  template <class Work>
  void at(int number, Work work) const {
    at_batch({pass_.operation, *pass_.epoch, batch(number), replica_}, work);
  }

  Tensors inputs(int number) {
    Tensors inputs;
    at(number, [&] {
      inputs = columns(number);
      inputs.resize(static_cast<size_t>(model_.num_inputs));
    });
    return inputs;
  }

 private:
  const Model::State& model_;
  ReplicaContext& replica_;
  const MeshPass& pass_;
  std::vector<DistributedBatch> batches_;
  std::vector<Tensors> columns_;
};

}  // namespace

void forward_on_mesh(Model::State& model, ReplicaContext& replica, const MeshPass& pass,
                     const std::function<void(const DistributedBatch& batch, const Tensors& columns,
                                              const Tensors& outputs)>& take) {
  const at::NoGradGuard no_grad;
  const int at_once = model.laid_out->batches_at_once();
  parallel::Pipeline& pipeline = model.laid_out->pipeline(replica, at_once);
  const bool gives = model.laid_out->gives_outputs(replica);
  for (int64_t first = 0; first < pass.epoch->num_batches(); first += at_once) {
    Batches batches(model, replica, pass, first, at_once);
    const int64_t end = std::min(first + at_once, pass.epoch->num_batches());
    const bool tells = pass.callbacks != nullptr && replica.local_rank() == 0;
    for (int64_t step = first; step < end && tells; ++step) pass.callbacks->step_begin(step);
    pipeline.forward({.sizes = batches.sizes(at_once),
                      .inputs = [&](int number) { return batches.inputs(number); },
                      .loss = {},
                      .place = {}},
                     [&](int number, const Tensors& outputs) {
                       if (!gives) return;
                       batches.at(number, [&] {
                         take(batches.batch(number), batches.columns(number), outputs);
                       });
                     });
    for (int64_t step = first; step < end && tells; ++step) pass.callbacks->step_end(step);
  }
}

}  // namespace tutti::detail
