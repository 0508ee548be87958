#include "tutti/train/lowered/compiled_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/lower_graph.h"
#include "tutti/nn/lower_rule.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/lowered/step.h"

namespace tutti {
namespace {

template <class T>
Array array_with(std::vector<int64_t> shape, const std::vector<T>& values) {
  Array array = Array::zeros(dtype_of<T>(), std::move(shape));
  std::ranges::copy(values, array.as<T>().begin());
  return array;
}

/// `rows` rows, those of `array` first, then the first of `like`: one that the model can take.
Array filled_up(const Array& array, int64_t rows, const Array& like) {
  if (array.shape()[0] == rows) return array;
  std::vector<int64_t> shape = array.shape();
  shape[0] = rows;
  Array whole = Array::zeros(array.dtype(), shape);
  const auto row_bytes = static_cast<size_t>(whole.num_bytes() / rows);
  auto* to = static_cast<std::byte*>(whole.data());
  std::memcpy(to, array.data(), static_cast<size_t>(array.num_bytes()));
  for (int64_t row = array.shape()[0]; row < rows; ++row)
    std::memcpy(to + static_cast<size_t>(row) * row_bytes, like.data(), row_bytes);
  return whole;
}

std::string words_of(const hlo::Type& type) { return hlo::to_string(type); }
std::string words_of(const Array& array) { return array.to_string(); }

void require_fits(std::string_view what, const Array& array, const hlo::Type& type, bool any_rows) {
  const auto& got = array.shape();
  const bool shapes = got.size() == type.shape.size() &&
                      std::equal(got.begin() + (any_rows && !got.empty() ? 1 : 0), got.end(),
                                 type.shape.begin() + (any_rows && !got.empty() ? 1 : 0));
  if (array.dtype() != type.dtype || !shapes)
    throw UsageError(
        fmt::format("compiled step: {} is {}, expected {}", what, words_of(array), words_of(type)));
}

/// Of a step, before the trainer has taken it.
struct StepNumbers {
  optim::StepScalars scalars;
  double scale = 0;  ///< of what rows lose
};

/// Whose value is the same on all devices, or each device's own.
bool is_kept(Slot slot) {
  return slot == Slot::parameter || slot == Slot::fixed || slot == Slot::state ||
         slot == Slot::buffer;
}

}  // namespace

double CompiledResult::loss(const Deadline& deadline) const {
  results_.wait(deadline);
  return results_.outputs[0][static_cast<size_t>(loss_place_)].to_host(deadline).as<float>()[0] *
         scale_;
}

std::vector<Array> CompiledResult::outputs(const Deadline& deadline) const {
  if (output_place_ < 0)
    throw UsageError("a compiled step gives outputs where CompiledOptions::outputs is set");
  results_.wait(deadline);
  std::vector<Array> all;
  for (size_t replica = 0; replica < rows_.size(); ++replica)
    all.push_back(
        results_.outputs[replica][static_cast<size_t>(output_place_)].to_host(deadline).rows(
            0, rows_[replica]));
  return all;
}

struct CompiledTrainer::State {
  struct Compiled {
    LoweredProgram lowered;
    pjrt::Program program;
  };

  nn::Graph graph;
  Loss loss;
  optim::Rule rule;
  pjrt::Client client;
  CompiledOptions options;
  std::vector<SlotOf> shapes;  ///< all that a step of one row takes
  std::vector<SlotOf> kept;    ///< of those, what stays on the devices
  std::vector<std::map<std::string, pjrt::Buffer>> devices;  ///< what each replica keeps
  std::map<int64_t, Compiled> steps, predictions;            ///< by rows of a replica
  std::vector<int> dropouts;
  optim::StepScalars scalars;
  int64_t updates = 0;

  /// Zeros, but for states that the rule begins elsewhere.
  Array first_value(const SlotOf& slot) const {
    Array array = Array::zeros(slot.type.dtype, slot.type.shape);
    if (slot.slot == Slot::state)
      for (int k = 0; k < rule.num_states(); ++k)
        if (slot.name.ends_with(fmt::format(".{}", rule.state_name(k))))
          std::ranges::fill(array.as<float>(), static_cast<float>(rule.state_start(k)));
    return array;
  }

  LoweredProgram lowered(int64_t rows) const {
    return lower_step(graph, loss, rule,
                      {.batch = rows,
                       .replicas = options.replicas,
                       .product = options.product,
                       .target = target_type(graph, loss, rows),
                       .outputs = options.outputs});
  }

  /// Of so many rows, or of more, filled up: nothing is compiled for a last batch.
  const std::pair<const int64_t, Compiled>& step_of(int64_t rows) {
    const auto found = steps.lower_bound(rows);
    if (found != steps.end()) return *found;
    LoweredProgram program = lowered(rows);
    pjrt::Program compiled = client.compile(program.text, {.replicas = options.replicas});
    return *steps.emplace(rows, Compiled{std::move(program), std::move(compiled)}).first;
  }

  const Compiled& prediction_of(int64_t rows) {
    const auto found = predictions.find(rows);
    if (found != predictions.end()) return found->second;
    LoweredProgram program = lower_prediction(graph, rows, options.product);
    pjrt::Program compiled = client.compile(program.text, {.replicas = 1});
    return predictions.emplace(rows, Compiled{std::move(program), std::move(compiled)})
        .first->second;
  }

  Array dropout_keys() const {
    std::vector<uint32_t> words;
    for (const int place : dropouts) {
      const uint64_t key =
          random_key(options.seed, RandomPurpose::dropout,
                     {static_cast<uint64_t>(updates), static_cast<uint64_t>(place), 1});
      words.push_back(static_cast<uint32_t>(key));
      words.push_back(static_cast<uint32_t>(key >> 32));
    }
    return array_with(std::vector<int64_t>{std::ssize(dropouts), 2}, words);
  }

  /// What a slot of a step has on this replica, unless it is kept there.
  Array value_of(const SlotOf& slot, const CompiledPart& part, const CompiledPart& like,
                 int64_t rows, int64_t first_row, const StepNumbers& step) const {
    switch (slot.slot) {
      case Slot::target: return filled_up(part.target, rows, like.target);
      case Slot::row_weights: {
        std::vector<float> weights(static_cast<size_t>(rows), 0.F);
        std::fill_n(weights.begin(), part.rows(), 1.F);
        return array_with(std::vector<int64_t>{rows}, weights);
      }
      case Slot::scale:
        return array_with(std::vector<int64_t>{}, std::vector{static_cast<float>(step.scale)});
      case Slot::scalars:
        return array_with(std::vector<int64_t>{nn::kLoweredScalars},
                          nn::lowered_scalars(step.scalars));
      case Slot::dropout_keys: return dropout_keys();
      case Slot::first_row: {
        const auto row = static_cast<uint64_t>(first_row);
        return array_with(std::vector<int64_t>{2}, std::vector{static_cast<uint32_t>(row),
                                                               static_cast<uint32_t>(row >> 32)});
      }
      default: {
        const auto found = std::ranges::find(graph.inputs(), slot.name, &nn::Port::name);
        const auto input = static_cast<size_t>(found - graph.inputs().begin());
        return filled_up(part.inputs[input], rows, like.inputs[input]);
      }
    }
  }

  /// By what the sum of the rows' losses is a mean: over those that count, where some labels do
  /// not.
  double scale_of(const std::vector<CompiledPart>& parts) const {
    const LossKernel& kernel = loss.kernel();
    double samples = 0, counted = 0, labels = 0;
    for (const CompiledPart& part : parts) {
      samples += static_cast<double>(part.rows());
      labels += static_cast<double>(part.target.num_elements());
      counted += static_cast<double>(kernel.counted(tensor_of(part.target)).value_or(0));
    }
    if (!kernel.counted({})) return 1 / samples;
    return counted > 0 ? labels / samples / counted : 0;
  }

  /// Inputs as they are, whatever their rows; tokens that an embedding has.
  void check_inputs(const std::vector<Array>& inputs) const {
    if (inputs.size() != graph.inputs().size())
      throw UsageError(fmt::format("compiled step: got {} inputs, expected {}", inputs.size(),
                                   graph.inputs().size()));
    size_t input = 0;
    for (const SlotOf& slot : shapes)
      if (slot.slot == Slot::input)
        require_fits(fmt::format("input \"{}\"", slot.name), inputs[input++], slot.type,
                     /*any_rows=*/true);
    for (const nn::Node& node : graph.nodes())
      if (const auto* embedding = std::get_if<nn::op::Embedding>(&node.op))
        for (size_t i = 0; i < inputs.size(); ++i)
          if (graph.inputs()[i].node == node.inputs[0] && inputs[i].dtype() == DType::int64)
            nn::detail::require_tokens(fmt::format("embedding of {} tokens", embedding->vocabulary),
                                       tensor_of(inputs[i]), embedding->vocabulary);
  }

  void check(const CompiledPart& part) const {
    check_inputs(part.inputs);
    for (const SlotOf& slot : shapes)
      if (slot.slot == Slot::target)
        require_fits("target", part.target, slot.type, /*any_rows=*/true);
    for (const Array& one : part.inputs)
      if (one.shape()[0] != part.target.shape()[0])
        throw UsageError(fmt::format("compiled step: {} rows of inputs, {} of targets",
                                     one.shape()[0], part.target.shape()[0]));
    std::vector<int64_t> shape = graph.output_shape();
    shape.insert(shape.begin(), part.rows());
    loss.kernel().check_targets(at::empty(shape), tensor_of(part.target));
  }
};

CompiledTrainer::CompiledTrainer(nn::Graph graph, Loss loss, optim::Rule rule, pjrt::Client client,
                                 CompiledOptions options)
    : state_(std::make_unique<State>(State{std::move(graph),
                                           std::move(loss),
                                           std::move(rule),
                                           std::move(client),
                                           options,
                                           {},
                                           {},
                                           {},
                                           {},
                                           {},
                                           {}})) {
  if (options.product != DType::float32 && options.product != DType::bfloat16)
    throw UsageError(fmt::format("compiled step: products of {}, expected float32 or bfloat16",
                                 name_of(options.product)));
  const auto classes = state_->loss.kernel().classes();
  if (classes && *classes != state_->graph.output_shape().back())
    throw UsageError(fmt::format("loss \"{}\" has weights of {} classes, the model gives {}",
                                 state_->loss.name(), *classes,
                                 state_->graph.output_shape().back()));
  if (options.replicas < 1 || options.replicas > state_->client.num_devices())
    throw UsageError(fmt::format("{} replicas on the {} devices of {}: expected 1 to {}",
                                 options.replicas, state_->client.num_devices(),
                                 pjrt::words_of(state_->client.facts()),
                                 state_->client.num_devices()));
  state_->dropouts = nn::dropouts_of(state_->graph);
  state_->devices.resize(static_cast<size_t>(options.replicas));
  state_->shapes = state_->lowered(1).arguments;
  std::map<std::string, Array> begun;
  for (const SlotOf& slot : state_->shapes) {
    if (!is_kept(slot.slot)) continue;
    state_->kept.push_back(slot);
    begun.emplace(slot.name, state_->first_value(slot));
  }
  load(begun);
}

CompiledTrainer::~CompiledTrainer() = default;
CompiledTrainer::CompiledTrainer(CompiledTrainer&&) noexcept = default;

void CompiledTrainer::load(const std::map<std::string, Array>& values) {
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
}

void CompiledTrainer::set_updates(int64_t updates) {
  if (updates < 0)
    throw UsageError(fmt::format("compiled step: {} updates, expected 0 or more", updates));
  state_->scalars = {};
  for (int64_t i = 0; i < updates; ++i)
    state_->scalars = state_->rule.next(state_->scalars, state_->rule.learning_rate());
  state_->updates = updates;
}

int64_t CompiledTrainer::updates() const { return state_->updates; }

std::map<std::string, Array> CompiledTrainer::values() const {
  const Deadline deadline(state_->options.limit);
  std::map<std::string, Array> values;
  for (const SlotOf& slot : state_->kept) {
    Array array = state_->devices[0].at(slot.name).to_host(deadline);
    if (slot.slot == Slot::buffer && slot.type.dtype == DType::float32) {
      std::vector<double> sums(static_cast<size_t>(array.num_elements()), 0.0);
      for (const auto& device : state_->devices) {
        const Array own = device.at(slot.name).to_host(deadline);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += own.as<float>()[i];
      }
      for (size_t i = 0; i < sums.size(); ++i)
        array.as<float>()[i] =
            static_cast<float>(sums[i] / static_cast<double>(state_->devices.size()));
    }
    values.emplace(slot.name, std::move(array));
  }
  return values;
}

CompiledResult CompiledTrainer::step(const std::vector<CompiledPart>& parts, double learning_rate) {
  State& s = *state_;
  if (parts.size() != s.devices.size())
    throw UsageError(
        fmt::format("compiled step: got {} parts for {} replicas", parts.size(), s.devices.size()));
  CompiledResult result;
  for (const CompiledPart& part : parts) {
    s.check(part);
    result.rows_.push_back(part.rows());
  }
  const auto most = std::ranges::max_element(result.rows_);
  if (*most == 0) throw UsageError("compiled step: a batch without rows");
  const CompiledPart& like = parts[static_cast<size_t>(most - result.rows_.begin())];
  const auto& [rows, compiled] = s.step_of(*most);
  const StepNumbers step{s.rule.next(s.scalars, learning_rate), s.scale_of(parts)};
  result.scale_ = step.scale;

  std::vector<std::vector<pjrt::Buffer>> sent(parts.size());
  std::vector<std::vector<const pjrt::Buffer*>> lists(parts.size());
  int64_t first_row = 0;
  for (size_t replica = 0; replica < parts.size(); ++replica) {
    sent[replica].reserve(compiled.lowered.arguments.size());
    for (const SlotOf& slot : compiled.lowered.arguments) {
      if (is_kept(slot.slot)) {
        lists[replica].push_back(&s.devices[replica].at(slot.name));
        continue;
      }
      const Array value = s.value_of(slot, parts[replica], like, rows, first_row, step);
      sent[replica].push_back(s.client.to_device(value, static_cast<int>(replica)));
      lists[replica].push_back(&sent[replica].back());
    }
    first_row += parts[replica].rows();
  }
  result.results_ = compiled.program.run(lists);
  s.scalars = step.scalars;
  ++s.updates;
  for (size_t k = 0; k < compiled.lowered.results.size(); ++k) {
    const SlotOf& slot = compiled.lowered.results[k];
    if (slot.slot == Slot::loss) result.loss_place_ = static_cast<int>(k);
    if (slot.slot == Slot::output) result.output_place_ = static_cast<int>(k);
    if (is_kept(slot.slot))
      for (size_t replica = 0; replica < parts.size(); ++replica)
        s.devices[replica].insert_or_assign(slot.name, result.results_.outputs[replica][k]);
  }
  return result;
}

std::vector<Array> CompiledTrainer::predict(const std::vector<Array>& inputs) {
  State& s = *state_;
  s.check_inputs(inputs);
  const State::Compiled& compiled = s.prediction_of(inputs[0].shape()[0]);
  std::vector<pjrt::Buffer> sent;
  sent.reserve(inputs.size());
  std::vector<const pjrt::Buffer*> list;
  for (const SlotOf& slot : compiled.lowered.arguments) {
    if (is_kept(slot.slot)) {
      list.push_back(&s.devices[0].at(slot.name));
      continue;
    }
    const Array& input = inputs[sent.size()];
    require_fits(fmt::format("input \"{}\"", slot.name), input, slot.type, /*any_rows=*/false);
    sent.push_back(s.client.to_device(input, 0));
    list.push_back(&sent.back());
  }
  const pjrt::Results results = compiled.program.run({list});
  const Deadline deadline(s.options.limit);
  results.wait(deadline);
  std::vector<Array> outputs;
  for (const pjrt::Buffer& output : results.outputs[0]) outputs.push_back(output.to_host(deadline));
  return outputs;
}

}  // namespace tutti
