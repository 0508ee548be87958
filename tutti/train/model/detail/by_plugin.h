/// What fit(), evaluate() and predict() have in common under strategy tpu, whose replicas are
/// devices of a plugin: all go through a batch at once. Not for users. Thread rule: that of Model.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/strategy/detail/on_host.h"
#include "tutti/train/lowered/detail/plugin_model.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// What compile() has chosen, as steps are compiled of it. UsageError for several outputs.
PluginModel::Training training_of(const Goals& goals, const optim::Rule& rule, Precision precision);

/// UsageError out of range.
void require_steps_per_execution(int64_t steps);

/// Columns of a batch as programs take them: of the graph's dtypes. UsageError for another number
/// of them, and for numbers where tokens are taken.
std::vector<Array> plugin_inputs(const nn::Graph& graph, at::TensorList inputs);

/// The same of a step; targets as the loss has them: int64 or float32, of the outputs' shape.
CompiledPart plugin_part(const nn::Graph& graph, const Loss& loss, const BatchParts& parts);

/// Those without rows are made of the others: a replica may have none.
void fill_empty(std::vector<std::vector<Array>>& inputs);

Tensors tensors_of(const std::vector<Array>& arrays);

/// What the model gives for one batch, [rows, ...] of each output; also for no rows.
Tensors outputs_by_plugin(const Model::State& model, at::TensorList inputs);

/// Of several processes: nobody waits for this one, which has failed and will not come.
void leave_others(const Strategy& strategy, std::string_view why);

class PassCallbacks;

/// The batches that a plugin's devices go through in evaluation.
struct PluginPass {
  std::string_view operation;
  std::shared_ptr<const data::Epoch> epoch;
  std::shared_ptr<const mesh::Topology> topology;
  std::shared_ptr<data::Loader> loader;
  PassCallbacks* callbacks = nullptr;  ///< null: none
};

/// Forward passes of all batches, until a signal asks for an end; of each replica that has a part
/// of one, columns and outputs go to `take`.
using TakeOutputs = std::function<void(const ReplicaContext& replica, const DistributedBatch& batch,
                                       const Tensors& columns, const Tensors& outputs)>;
void forward_by_plugin(Model::State& model, const PluginPass& pass, const TakeOutputs& take);

}  // namespace tutti::detail
