/// What evaluate() and predict() share; not for users. Thread rule: that of Model.
#pragma once

#include <torch/nn/module.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/nn/graph_module.h"
#include "tutti/queues/out_of_memory.h"
#include "tutti/queues/upload.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/located.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// Evaluation mode with merged buffers in every replica; afterwards each has its own buffers again,
/// and every module, whose parts may differ, the mode it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(ReplicatedModules& modules) : modules_(modules) {
    if (!keeps_buffers(modules)) merge_buffers();
    for (int local = 0; local < modules.size(); ++local)
      // A module comes before its parts, so train() of a part has the last word.
      for (auto& module : modules.module(local)->modules())
        modes_.emplace_back(module, module->is_training());
    modules.train(false);
  }
  ~EvaluationMode() {
    at::NoGradGuard no_grad;
    for (auto& [buffer, value] : own_) buffer.copy_(value);
    modules_.train(modes_.front().second);  // also what replicas of a grown world begin with
    for (auto& [module, training] : modes_)
      if (module->is_training() != training) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  /// Those of a lone replica are merged already, and layers of a graph change none in evaluation.
  static bool keeps_buffers(const ReplicatedModules& modules) {
    return modules.size() == 1 && modules.whole() == nullptr &&
           modules.strategy().membership().alone() &&
           dynamic_cast<const nn::GraphModule*>(modules.module(0).get()) != nullptr;
  }
  void merge_buffers() {
    const NamedTensors all = modules_.merged_buffers();
    const std::map<std::string, at::Tensor> merged(all.begin(), all.end());
    const at::NoGradGuard no_grad;
    for (int local = 0; local < modules_.size(); ++local)
      for (const auto& [name, buffer] : unique_buffers(*modules_.module(local))) {
        own_.emplace_back(buffer, buffer.clone());
        copy_queued(buffer, merged.at(name));
      }
  }

  ReplicatedModules& modules_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

/// Callbacks of an evaluation or a prediction. Thread rule: a step's on the thread of this worker's
/// first replica, the rest on that of Model.
class PassCallbacks {
 public:
  using Hook = void (Callback::*)(const PassFacts&);
  struct Hooks {
    Hook begin, step_begin, step_end, end;
  };
  static Hooks of_test();
  static Hooks of_predict();

  /// `operation` begins what is said of one that throws.
  PassCallbacks(const Strategy& strategy, std::string_view operation, const Callbacks& callbacks,
                Hooks hooks, const data::Epoch& epoch);

  void begin();
  void step_begin(int64_t batch) { at(batch, hooks_.step_begin); }
  void step_end(int64_t batch) { at(batch, hooks_.step_end); }
  /// Throws what one of them has thrown; on other workers an error that says so. Collective over
  /// workers that are in step.
  void end(NamedValues values = {});

 private:
  void at(int64_t batch, Hook hook);
  void call(Hook hook);

  Strategy strategy_;
  std::string operation_;
  const Callbacks& callbacks_;
  Hooks hooks_;
  PassFacts facts_;
  std::exception_ptr failure_;
};

/// A replica's part of a batch that an operation is at.
struct BatchPlace {
  std::string_view operation;
  const data::Epoch& epoch;
  const DistributedBatch& batch;
  const ReplicaContext& replica;
};

/// Calls `work`; what it throws names the batch, and the sample where it can.
template <class Work>
void at_batch(const BatchPlace& at, Work work) {
  const auto words = [&] {
    return batch_words(at.operation, at.batch.step(), at.epoch, at.replica);
  };
  try {
    work();
  } catch (const RowError& error) {
    throw error.at(words(), rows_of(at.epoch, at.batch, at.replica));
  } catch (const c10::OutOfMemoryError& error) {
    throw_out_of_memory(at.replica.queue(), error,
                        {.where = "in " + words(), .global_samples = at.batch.global_size()});
  } catch (const std::exception&) {
    std::rethrow_exception(located(words()));
  }
}

/// The batches that a mesh goes through.
struct MeshPass {
  std::string_view operation;
  std::shared_ptr<const data::Epoch> epoch;
  std::shared_ptr<const mesh::Topology> topology;
  PassCallbacks* callbacks = nullptr;  ///< null: none
};
/// Forward passes of all batches on the ranks of a mesh; each batch's columns and outputs go to
/// `take`, on the rank that gives the outputs of its replica. Each rank computes its batches when
/// it needs them. Collective over the replica's ranks.
void forward_on_mesh(Model::State& model, ReplicaContext& replica, const MeshPass& pass,
                     const std::function<void(const DistributedBatch& batch, const Tensors& columns,
                                              const Tensors& outputs)>& take);

/// Samples as they lie: epoch 0.
inline std::shared_ptr<const data::Epoch> first_epoch(const Strategy& strategy,
                                                      const data::Dataset& dataset) {
  return std::make_shared<const data::Epoch>(
      dataset.epoch({.epoch = 0, .seed = strategy.options().seed}));
}

}  // namespace tutti::detail
