#include "tutti/train/model/detail/by_plugin.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/lowered/detail/rows.h"
#include "tutti/train/model/detail/evaluation.h"

namespace tutti::detail {

PluginModel::Training training_of(const Goals& goals, const optim::Rule& rule,
                                  Precision precision) {
  if (goals.size() != 1)
    throw UsageError(
        fmt::format("compile: strategy tpu compiles steps of one output in this version, got {}; "
                    "train it under "
                    "mirrored, or give the graph one output",
                    goals.size()));
  return {.loss = goals[0].loss,
          .rule = rule,
          .product = precision == Precision::bfloat16 ? DType::bfloat16 : DType::float32,
          .outputs = !goals[0].metrics.empty()};
}

void require_steps_per_execution(int64_t steps) {
  constexpr int64_t kMost = 1'000;
  if (steps < 1 || steps > kMost)
    throw UsageError(
        fmt::format("compile: steps_per_execution is {}, must be 1 to {}", steps, kMost));
}

std::vector<Array> plugin_inputs(const nn::Graph& graph, at::TensorList inputs) {
  if (inputs.size() != graph.inputs().size())
    throw UsageError(
        fmt::format("got {} inputs, the model has {}", inputs.size(), graph.inputs().size()));
  std::vector<Array> arrays;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const nn::Node& node = graph.nodes()[static_cast<size_t>(graph.inputs()[i].node)];
    const DType wanted = std::get<nn::op::Input>(node.op).dtype;
    if (!is_floating(wanted) && at::isFloatingType(inputs[i].scalar_type()))
      throw UsageError(fmt::format("input \"{}\" is {}, the model takes {}", graph.inputs()[i].name,
                                   array_of(inputs[i]).to_string(), name_of(wanted)));
    arrays.push_back(array_of(inputs[i].to(scalar_type_of(wanted))));
  }
  return arrays;
}

CompiledPart plugin_part(const nn::Graph& graph, const Loss& loss, const BatchParts& parts) {
  CompiledPart part{.inputs = plugin_inputs(graph, parts.inputs), .target = {}};
  const hlo::Type type = target_type(graph, loss, part.rows());
  at::Tensor target = parts.targets[0];
  if (!is_floating(type.dtype) && at::isFloatingType(target.scalar_type()))
    throw UsageError(fmt::format("loss \"{}\" takes labels, integers; got {}", loss.name(),
                                 array_of(target).to_string()));
  target = target.to(scalar_type_of(type.dtype));
  if (hlo::num_elements(type) == target.numel()) target = target.reshape(type.shape);
  part.target = array_of(target);
  if (parts.weights.defined()) part.weights = array_of(parts.weights);
  return part;
}

void fill_empty(std::vector<std::vector<Array>>& inputs) {
  const auto like =
      std::ranges::find_if(inputs, [](const std::vector<Array>& own) { return !own.empty(); });
  if (like == inputs.end()) return;
  for (std::vector<Array>& own : inputs)
    for (size_t i = own.size(); i < like->size(); ++i) own.push_back((*like)[i].rows(0, 0));
}

Tensors tensors_of(const std::vector<Array>& arrays) {
  Tensors tensors;
  for (const Array& array : arrays) tensors.push_back(tensor_of(array));
  return tensors;
}

Tensors outputs_by_plugin(const Model::State& model, at::TensorList inputs) {
  const std::vector<Array> arrays = plugin_inputs(*model.graph, inputs);
  model.plugin->get_ready();
  model.plugin->average_buffers();
  if (rows_of(arrays) > 0) return tensors_of(model.plugin->predict(arrays));
  Tensors none;
  for (const nn::Port& output : model.graph->outputs()) {
    std::vector<int64_t> shape = model.graph->shape_of(output);
    shape.insert(shape.begin(), 0);
    none.push_back(at::empty(shape));
  }
  return none;
}

void leave_others(const Strategy& strategy, std::string_view why) {
  World world = strategy.world();
  for (int local = 0; !world.in_turn() && local < world.local; ++local)
    world.abort(local, fmt::format("replica {} failed: {}", world.first_rank + local, why));
}

void forward_by_plugin(Model::State& model, const PluginPass& pass, const TakeOutputs& take) try {
  const at::NoGradGuard no_grad;
  const std::vector<ReplicaContext> replicas = OnHost(model.strategy).replicas();
  const auto num_inputs = static_cast<size_t>(model.num_inputs);
  model.plugin->get_ready();
  model.plugin->average_buffers();
  for (int64_t step = 0; step < pass.epoch->num_batches() && stop_requested() == 0; ++step) {
    const DistributedBatch batch(pass.epoch, step, pass.topology, nullptr, pass.loader);
    if (pass.callbacks != nullptr) pass.callbacks->step_begin(step);
    std::vector<Tensors> columns(replicas.size());
    std::vector<std::vector<Array>> inputs(replicas.size());
    const auto for_each = [&](const auto& work) {
      for (size_t local = 0; local < replicas.size(); ++local)
        if (batch.local_size(replicas[local]) > 0)
          at_batch({pass.operation, *pass.epoch, batch, replicas[local]}, [&] { work(local); });
    };
    for_each([&](size_t local) {
      columns[local] = batch.host_columns(replicas[local]);
      inputs[local] =
          plugin_inputs(*model.graph, at::TensorList(columns[local]).slice(0, num_inputs));
      model.plugin->check_inputs(inputs[local]);
    });
    if (!std::ranges::all_of(inputs, &std::vector<Array>::empty)) {  // else other processes' alone
      fill_empty(inputs);
      const auto outputs = model.plugin->predict(inputs);
      for_each([&](size_t local) {
        take(replicas[local], batch, columns[local], tensors_of(outputs[local]));
      });
    }
    if (pass.callbacks != nullptr) pass.callbacks->step_end(step);
  }
} catch (const std::exception& error) {
  leave_others(model.strategy, error.what());
  throw;
}

}  // namespace tutti::detail
