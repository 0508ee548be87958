#include "tutti/train/lowered/compiled_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/lowered/detail/rows.h"

namespace tutti {

using detail::filled_up;
using detail::require_fits;
using detail::rows_of;

struct CompiledModel::State {
  struct Compiled {
    LoweredProgram lowered;
    pjrt::Program program;
  };
  using Values = std::map<std::string, pjrt::Buffer>;

  nn::Graph graph;
  pjrt::Client client;
  CompiledOptions options;
  std::vector<SlotOf> inputs;  ///< of a prediction of one row
  std::vector<SlotOf> kept;
  std::vector<Values> devices;  ///< by replica
  std::vector<Values> merged;   ///< floating buffers as they are in evaluation; or empty
  std::map<int64_t, Compiled> predictions;  ///< by rows of a replica
  detail::LargerProgram serves_{};

  int here() const { return options.exchange ? client.num_devices() : options.replicas; }

  LoweredProgram lowered(int64_t rows) const {
    return lower_prediction(graph, rows, options.product, here());
  }

  const std::pair<const int64_t, Compiled>& prediction_of(int64_t rows) {
    const auto found = predictions.lower_bound(rows);
    if (found != predictions.end() && serves_.serve(rows, found->first)) return *found;
    LoweredProgram program = lowered(rows);
    pjrt::Program compiled = client.compile(program.text, {.replicas = here()});
    return *predictions.emplace(rows, Compiled{std::move(program), std::move(compiled)}).first;
  }

  static bool is_averaged(const SlotOf& slot) {
    return slot.slot == Slot::buffer && slot.type.dtype == DType::float32;
  }

  Array mean_of(const SlotOf& slot, const Deadline& deadline) const {
    Array array = devices[0].at(slot.name).to_host(deadline);
    std::vector<double> sums(static_cast<size_t>(array.num_elements()), 0.0);
    for (const Values& device : devices) {
      const Array own = device.at(slot.name).to_host(deadline);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += own.as<float>()[i];
    }
    for (size_t i = 0; i < sums.size(); ++i)
      array.as<float>()[i] = static_cast<float>(sums[i] / static_cast<double>(devices.size()));
    return array;
  }

  std::map<std::string, Array> means() const {
    std::map<std::string, Array> means;
    for (const SlotOf& slot : kept)
      if (is_averaged(slot)) means.emplace(slot.name, mean_of(slot, Deadline(options.limit)));
    return means;
  }

  void merge(const std::map<std::string, Array>& means) {
    merged.assign(devices.size(), {});
    for (size_t r = 0; r < devices.size(); ++r)
      for (const auto& [name, mean] : means)
        merged[r].emplace(name, client.to_device(mean, static_cast<int>(r)));
  }

  /// Replicas have statistics of their own; all evaluate with their mean.
  const pjrt::Buffer& in_evaluation(size_t replica, const std::string& name) {
    if (merged.empty() && devices.size() == 1) return devices[0].at(name);
    if (merged.empty()) merge(means());
    const auto found = merged[replica].find(name);
    return found != merged[replica].end() ? found->second : devices[replica].at(name);
  }
};

CompiledModel::CompiledModel(nn::Graph graph, pjrt::Client client, const CompiledOptions& options)
    : state_(std::make_unique<State>(State{.graph = std::move(graph),
                                           .client = std::move(client),
                                           .options = options,
                                           .inputs = {},
                                           .kept = {},
                                           .devices = {},
                                           .merged = {},
                                           .predictions = {}})) {
  if (options.product != DType::float32 && options.product != DType::bfloat16)
    throw UsageError(fmt::format("compiled step: products of {}, expected float32 or bfloat16",
                                 name_of(options.product)));
  const int devices = options.exchange ? static_cast<int>(state_->client.all_devices().size())
                                       : state_->client.num_devices();
  if (options.replicas < (options.exchange ? devices : 1) || options.replicas > devices)
    throw UsageError(fmt::format(
        "{} replicas on the {} devices of {}: expected {}", options.replicas, devices,
        pjrt::words_of(state_->client.facts()),
        options.exchange ? "all, of several processes" : fmt::format("1 to {}", devices)));
  state_->devices.resize(static_cast<size_t>(state_->here()));
  const LoweredProgram one = state_->lowered(1);
  std::vector<SlotOf> kept;
  for (const SlotOf& slot : one.arguments)
    (is_kept(slot.slot) ? kept : state_->inputs).push_back(slot);
  keep(kept);
}

CompiledModel::~CompiledModel() = default;
CompiledModel::CompiledModel(CompiledModel&&) noexcept = default;

const nn::Graph& CompiledModel::graph() const noexcept { return state_->graph; }
const pjrt::Client& CompiledModel::client() const noexcept { return state_->client; }
const CompiledOptions& CompiledModel::options() const noexcept { return state_->options; }
int CompiledModel::replicas_here() const noexcept { return state_->here(); }

void CompiledModel::keep(const std::vector<SlotOf>& slots) {
  std::map<std::string, Array> zeros;
  for (const SlotOf& slot : slots) {
    state_->kept.push_back(slot);
    zeros.emplace(slot.name, Array::zeros(slot.type.dtype, slot.type.shape));
  }
  load(zeros);
}

const pjrt::Buffer& CompiledModel::value(int replica, const std::string& name) const {
  return state_->devices[static_cast<size_t>(replica)].at(name);
}

void CompiledModel::become(int replica, const std::string& name, pjrt::Buffer value) {
  state_->merged.clear();
  state_->devices[static_cast<size_t>(replica)].insert_or_assign(name, std::move(value));
}

void CompiledModel::load(const std::map<std::string, Array>& values) {
  for (const auto& [name, array] : values) {
    const auto slot = std::ranges::find(state_->kept, name, &SlotOf::name);
    if (slot == state_->kept.end())
      throw UsageError(
          fmt::format("compiled step: there is no parameter, state or buffer \"{}\"", name));
    require_fits(fmt::format("\"{}\"", name), array, slot->type, /*any_rows=*/false);
  }
  auto devices = state_->devices;  // all of it, or nothing
  for (size_t replica = 0; replica < devices.size(); ++replica)
    for (const auto& [name, array] : values)
      devices[replica].insert_or_assign(name,
                                        state_->client.to_device(array, static_cast<int>(replica)));
  state_->devices = std::move(devices);
  state_->merged.clear();
}

std::map<std::string, Array> CompiledModel::values() const {
  const Deadline deadline(state_->options.limit);
  std::map<std::string, Array> values;
  for (const SlotOf& slot : state_->kept)
    if (slot.slot != Slot::left_out)
      values.emplace(slot.name, State::is_averaged(slot)
                                    ? state_->mean_of(slot, deadline)
                                    : state_->devices[0].at(slot.name).to_host(deadline));
  return values;
}

std::vector<std::string> CompiledModel::exchanged(std::string_view own) const {
  std::vector<std::string> all = state_->options.exchange(own);
  for (size_t process = 0; process < all.size(); ++process)
    if (all[process].size() != own.size())
      throw Mismatch(fmt::format(
          "compiled step: process {} has brought {} bytes, this one {}: all begin the same steps",
          process, all[process].size(), own.size()));
  return all;
}

void CompiledModel::average_buffers() {
  State& s = *state_;
  std::map<std::string, Array> means = s.means();
  if (!s.options.exchange || means.empty()) return;
  std::string own;
  for (const auto& [name, mean] : means)
    own.append(static_cast<const char*>(mean.data()), static_cast<size_t>(mean.num_bytes()));
  const std::vector<std::string> all = exchanged(own);
  size_t at = 0;
  for (auto& [name, mean] : means)
    for (float& value : mean.as<float>()) {
      double sum = 0;
      for (const std::string& one : all) {
        float theirs = 0;
        std::memcpy(&theirs, one.data() + at, sizeof theirs);
        sum += theirs;
      }
      value = static_cast<float>(sum / static_cast<double>(all.size()));
      at += sizeof value;
    }
  s.merge(means);
}

void CompiledModel::check_inputs(const std::vector<Array>& inputs) const {
  const nn::Graph& graph = state_->graph;
  if (inputs.size() != graph.inputs().size())
    throw UsageError(fmt::format("compiled step: got {} inputs, expected {}", inputs.size(),
                                 graph.inputs().size()));
  for (size_t i = 0; i < inputs.size(); ++i)
    require_fits(fmt::format("input \"{}\"", state_->inputs[i].name), inputs[i],
                 state_->inputs[i].type, /*any_rows=*/true);
  for (const nn::Node& node : graph.nodes())
    if (const auto* embedding = std::get_if<nn::op::Embedding>(&node.op))
      for (size_t i = 0; i < inputs.size(); ++i)
        if (graph.inputs()[i].node == node.inputs[0] && inputs[i].dtype() == DType::int64)
          nn::detail::require_tokens(fmt::format("embedding of {} tokens", embedding->vocabulary),
                                     tensor_of(inputs[i]), embedding->vocabulary);
  std::vector<at::Tensor> tensors;
  for (const Array& input : inputs) tensors.push_back(tensor_of(input));
  nn::detail::require_steps_of_inputs(graph, tensors);
}

std::vector<std::vector<Array>> CompiledModel::predict(
    const std::vector<std::vector<Array>>& inputs) {
  State& s = *state_;
  if (inputs.size() != s.devices.size())
    throw UsageError(
        fmt::format("predict: got {} parts for {} replicas", inputs.size(), s.devices.size()));
  for (const auto& own : inputs) check_inputs(own);
  const auto& like =
      *std::ranges::max_element(inputs, {}, [](const auto& own) { return rows_of(own); });
  if (rows_of(like) == 0) throw UsageError("predict: a batch without rows");
  const auto& [rows, compiled] = s.prediction_of(rows_of(like));
  std::vector<std::vector<pjrt::Buffer>> sent(inputs.size());
  std::vector<std::vector<const pjrt::Buffer*>> lists(inputs.size());
  for (size_t replica = 0; replica < inputs.size(); ++replica) {
    sent[replica].reserve(like.size());
    for (const SlotOf& slot : compiled.lowered.arguments) {
      if (is_kept(slot.slot)) {
        lists[replica].push_back(&s.in_evaluation(replica, slot.name));
        continue;
      }
      const size_t i = sent[replica].size();
      sent[replica].push_back(s.client.to_device(filled_up(inputs[replica][i], rows, like[i]),
                                                 static_cast<int>(replica)));
      lists[replica].push_back(&sent[replica].back());
    }
  }
  const pjrt::Results results = compiled.program.run(lists, s.options.limit);
  const Deadline deadline(s.options.limit);
  results.wait(deadline);
  std::vector<std::vector<Array>> outputs(inputs.size());
  for (size_t replica = 0; replica < inputs.size(); ++replica)
    if (const int64_t own = rows_of(inputs[replica]); own > 0)
      for (const pjrt::Buffer& output : results.outputs[replica])
        outputs[replica].push_back(output.to_host(deadline).rows(0, own));
  return outputs;
}

std::vector<Array> CompiledModel::predict(const std::vector<Array>& inputs) {
  check_inputs(inputs);
  const auto parts = static_cast<int64_t>(state_->devices.size());
  const int64_t rows = rows_of(inputs);
  std::vector<std::vector<Array>> cut(state_->devices.size());
  for (int64_t part = 0; part < parts; ++part)
    for (const Array& input : inputs)
      cut[static_cast<size_t>(part)].push_back(
          input.rows(rows * part / parts, rows * (part + 1) / parts));
  return detail::joined(predict(cut));
}

}  // namespace tutti
