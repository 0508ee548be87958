// Outputs for all samples of a dataset, from whichever replicas have computed them.

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/late_reads.h"
#include "tutti/queues/out_of_memory.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/train/losses/detail/loss_parts.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/by_plugin.h"
#include "tutti/train/model/detail/evaluation.h"
#include "tutti/train/model/detail/placement.h"

namespace tutti {
namespace detail {
namespace {

/// Outputs for rows of a dataset, by the first row.
using RowParts = std::vector<std::pair<int64_t, Tensors>>;

/// What outputs are, as a replica that has seen some knows and others are told.
struct OutputKind {
  std::vector<int64_t> shape;  ///< [samples, ...]
  at::ScalarType dtype;
};

/// Collective over workers. This output is of one kind on all replicas.
OutputKind kind_of_output(Strategy& strategy, const std::vector<RowParts>& each, size_t number) {
  constexpr size_t kMostAxes = 14;
  std::array<double, kMostAxes + 2> words{};  // dtype + 1, number of axes, axes
  for (const RowParts& parts : each) {
    if (parts.empty() || words[0] > 0) continue;
    const at::Tensor& output = parts[0].second.at(number);
    if (output.dim() > static_cast<int64_t>(kMostAxes))
      throw UsageError(fmt::format("predict: outputs have {} axes; expected 1 to {}, samples first",
                                   output.dim(), kMostAxes));
    words[0] = static_cast<double>(output.scalar_type()) + 1;
    words[1] = static_cast<double>(output.dim());
    std::ranges::copy(output.sizes(), words.begin() + 2);
  }
  std::vector<decltype(words)> all(each.size(), words);
  words = strategy.reduce(ReduceOp::max,
                          PerReplica<decltype(words)>(std::move(all), strategy.world().first_rank));
  const auto axes = words.begin() + 2;
  return {{axes, axes + static_cast<int64_t>(words[1])},
          static_cast<at::ScalarType>(static_cast<int>(words[0]) - 1)};
}

/// Collective over workers: some may have seen no sample.
size_t count_of_outputs(Strategy& strategy, const std::vector<RowParts>& each) {
  std::vector<double> counts;
  for (const RowParts& parts : each)
    counts.push_back(parts.empty() ? 0 : static_cast<double>(parts[0].second.size()));
  return static_cast<size_t>(strategy.reduce(
      ReduceOp::max, PerReplica<double>(std::move(counts), strategy.world().first_rank)));
}

/// All rows, -0 where this worker has none, which added to x is x; and beside each 1 where it has:
/// [rows, 1].
std::pair<at::Tensor, at::Tensor> rows_of(const std::vector<RowParts>& each, size_t output,
                                          int64_t num_rows, OutputKind kind) {
  kind.shape[0] = num_rows;
  std::pair rows(at::full(kind.shape, -0.0, kind.dtype), at::zeros({num_rows, 1}, kind.dtype));
  for (const RowParts& parts : each)
    for (const auto& [row, outputs] : parts) {
      const at::Tensor& part = outputs.at(output);
      rows.first.narrow(0, row, part.size(0)).copy_(part);
      rows.second.narrow(0, row, part.size(0)).fill_(1);
    }
  return rows;
}

/// Of one tensor a worker. Collective over workers.
at::Tensor sum_of(Strategy& strategy, const at::Tensor& own) {
  const World& world = strategy.world();
  std::vector<at::Tensor> values(static_cast<size_t>(world.local), at::full_like(own, -0.0));
  values[0] = own;
  return strategy.reduce(ReduceOp::sum,
                         PerReplica<at::Tensor>(std::move(values), world.first_rank));
}

/// All rows of one output, from all workers; undefined when some were lost on the way. Collective.
at::Tensor rows_over_world(Strategy& strategy, const std::vector<RowParts>& each, size_t output,
                           int64_t num_rows) {
  const auto [all, filled] =
      rows_of(each, output, num_rows, kind_of_output(strategy, each, output));
  if (strategy.membership().alone()) return all;
  if (strategy.membership().all_stay()) return sum_of(strategy, all);
  // Beside each row whether somebody has filled it.
  const int64_t width = all.numel() / std::max<int64_t>(num_rows, 1);
  const at::Tensor sum = sum_of(strategy, at::cat({all.reshape({num_rows, width}), filled}, 1));
  if (!sum.select(1, width).eq(1).all().item<bool>()) return {};
  return sum.narrow(1, 0, width).reshape(all.sizes()).contiguous();
}

/// Of each output as many rows as samples went in.
Tensors whole(Tensors outputs, int64_t samples) {
  for (const at::Tensor& output : outputs)
    if (!output.defined() || output.dim() < 1 || output.size(0) != samples)
      throw UsageError(fmt::format(
          "predict: forward of the model gave {} for {} samples; expected an axis of {} first",
          output.defined() ? tensor_words(output) : "an undefined tensor", samples, samples));
  return outputs;
}

void require_one_output(size_t outputs) {
  if (outputs != 1)
    throw UsageError(fmt::format("predict: the model has {} outputs; use predict_all()", outputs));
}

/// What is kept of a whole dataset is not to fill the host's pinned memory.
Tensors unpinned(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

/// How many samples go in: the first axis of every input.
int64_t samples_in(const Tensors& inputs, const std::optional<nn::Graph>& graph) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    const auto refuse = [&](const std::string& expected) {
      throw UsageError(fmt::format(
          "predict: input {} of {} is {}; expected {}, samples first: one sample is x.unsqueeze(0)",
          i + 1, inputs.size(), input.defined() ? tensor_words(input) : "an undefined tensor",
          expected));
    };
    if (!input.defined() || input.dim() == 0) refuse("[samples, ...]");
    if (input.size(0) != inputs[0].size(0))
      refuse(fmt::format("{} samples, as input 1 has", inputs[0].size(0)));
    if (!graph || i >= graph->inputs().size()) continue;
    const nn::Shape& shape = graph->shape_of(graph->inputs()[i]);
    if (input.dim() != std::ssize(shape) + 1)
      refuse(fmt::format("samples of {}", nn::to_string(shape)));
  }
  return inputs.empty() ? 0 : inputs[0].size(0);
}

/// Those of one batch, as tensors on `device`.
Tensors inputs_on(at::Device device, const Tensors& inputs) {
  Tensors there;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].is_cpu() && inputs[i].device() != device)
      throw UsageError(fmt::format(
          "predict: input {} of {} is on {}; expected the CPU, or {}, where the model is", i + 1,
          inputs.size(), inputs[i].device().str(), device.str()));
    there.push_back(on_device(inputs[i], device));
  }
  return there;
}

// All ranks take part, each with these inputs.
Tensors predicted_on_mesh(Model& model, const Tensors& inputs) {
  const int64_t samples = inputs.at(0).size(0);
  return model.predict_all(data::from_tensors(inputs).batch(std::max<int64_t>(samples, 1)));
}

std::vector<RowParts> predicted_by_plugin(Model::State& model, const PluginPass& pass) {
  std::vector<RowParts> each(static_cast<size_t>(model.strategy.world().local));
  forward_by_plugin(model, pass,
                    [&](const ReplicaContext& replica, const DistributedBatch& batch,
                        const Tensors&, const Tensors& outputs) {
                      each[static_cast<size_t>(replica.local_rank())].emplace_back(
                          pass.epoch->first_sample(batch.step()) + batch.first_row(replica),
                          outputs);
                    });
  const bool ends = model.strategy.membership().anybody(stop_requested() != 0);
  throw_if_stop_requested("predict");
  if (ends)
    throw Interrupted(SIGTERM,
                      "predict: another worker was asked to end and did not see all samples");
  return each;
}

at::Tensor only_output(Tensors outputs) {
  require_one_output(outputs.size());
  return std::move(outputs.front());
}

}  // namespace
}  // namespace detail

std::vector<at::Tensor> Model::predict_all(const std::vector<at::Tensor>& inputs) {
  const int64_t samples = detail::samples_in(inputs, state_->graph);
  state_->require_whole();
  if (state_->modules.whole() != nullptr) return detail::predicted_on_mesh(*this, inputs);
  const detail::EvaluationMode mode(state_->modules);
  const at::NoGradGuard no_grad;
  const World& world = state_->strategy.world();
  return with_memory(world.on_devices() ? world.queues[0] : DeviceQueue(), "in predict()", [&] {
    const auto there = detail::inputs_on(detail::device_of(*state_->modules.module(0)), inputs);
    return on_host(detail::whole(state_->outputs(0, there), samples), Deadline(world.time_limit),
                   "predict()");
  });
}

at::Tensor Model::predict(const at::Tensor& inputs) {
  if (state_->graph) detail::require_one_output(state_->graph->outputs().size());
  return detail::only_output(predict_all(std::vector{inputs}));
}

at::Tensor Model::predict(const data::Dataset& dataset, const Callbacks& callbacks) {
  take_input_of(dataset);
  if (state_->graph) detail::require_one_output(state_->graph->outputs().size());
  return detail::only_output(predict_all(dataset, callbacks));
}

std::vector<at::Tensor> Model::predict_all(const data::Dataset& dataset,
                                           const Callbacks& callbacks) {
  take_input_of(dataset);
  State& state = *state_;
  if (state.compiled && state.compiled->optimizer.updater().averaged() != nullptr)
    state.require_whole();
  state.check_data("predict", dataset, false);
  detail::require_same_words(state.strategy, "predict", detail::predict_words(callbacks));
  detail::require_same_data(state.strategy.membership(), "predict", "data", dataset,
                            state.strategy.options().seed);
  const auto epoch = detail::first_epoch(state.strategy, dataset);
  std::shared_ptr<const mesh::Topology> topology;
  const auto loader =
      detail::make_loader({}, state.strategy.world(), state.strategy.options().threads_per_replica);
  const auto inputs = static_cast<size_t>(state.num_inputs);
  detail::PassCallbacks called(state.strategy, "predict", callbacks,
                               detail::PassCallbacks::of_predict(), *epoch);
  called.begin();
  const detail::EvaluationMode mode(state.modules);
  const auto own = [&](ReplicaContext& replica) {
    const at::NoGradGuard no_grad;
    detail::require_here(*state.modules.module(replica.local_rank()), replica);
    detail::RowParts parts;
    detail::PassCallbacks* const tell = replica.local_rank() == 0 ? &called : nullptr;
    if (state.modules.whole() != nullptr) {
      detail::forward_on_mesh(state, replica, {"predict", epoch, topology, tell},
                              [&](const DistributedBatch& batch, const detail::Tensors&,
                                  const detail::Tensors& outputs) {
                                parts.emplace_back(
                                    epoch->first_sample(batch.step()) + batch.first_row(replica),
                                    detail::whole(outputs, batch.local_size(replica)));
                              });
      return parts;
    }
    LateReads late(replica.queue());
    for (int64_t step = 0; step < epoch->num_batches(); ++step) {
      const DistributedBatch batch(epoch, step, topology, nullptr, loader);
      if (tell != nullptr) tell->step_begin(step);
      const auto done = [&] {
        if (tell != nullptr) tell->step_end(step);
      };
      if (batch.local_size(replica) == 0) {
        done();
        continue;
      }
      detail::at_batch({"predict", *epoch, batch, replica}, [&] {
        const auto columns =
            replica.on_device(at::TensorList(batch.host_columns(replica)).slice(0, inputs));
        const auto outputs =
            detail::whole(state.outputs(replica.local_rank(), columns), batch.local_size(replica));
        late.add(outputs, [&, row = epoch->first_sample(step) +
                                    batch.first_row(replica)](const detail::Tensors& read) {
          parts.emplace_back(row, replica.queue().on_device() ? detail::unpinned(read) : read);
        });
      });
      late.poll(Deadline(patience_with_device(replica.time_limit())));
      done();
    }
    late.settle(Deadline(patience_with_device(replica.time_limit())));
    return parts;
  };
  detail::Tensors all;
  state.strategy.membership().until_whole([&](std::shared_ptr<const mesh::Topology> here) {
    topology = std::move(here);
    detail::begin_epoch(*loader, *epoch, topology, nullptr, 0, epoch->num_batches());
    const auto each = state.plugin ? detail::predicted_by_plugin(
                                         state, {"predict", epoch, topology, loader, &called})
                                   : state.strategy.run(own).values();
    const size_t outputs = detail::count_of_outputs(state.strategy, each);
    all.clear();
    for (size_t output = 0; output < outputs; ++output)
      all.push_back(detail::rows_over_world(state.strategy, each, output, epoch->num_samples()));
    return std::ranges::all_of(all, &at::Tensor::defined);
  });
  called.end();
  return all;
}

}  // namespace tutti
