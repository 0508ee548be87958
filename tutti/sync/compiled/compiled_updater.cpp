#include "tutti/sync/compiled/compiled_updater.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/sync/detail/updater_state.h"

namespace tutti {
namespace {

// Whoever reads the host's copy waits for no other process: each has all of it.
World of_this_process(const World& world) {
  if (world.processes() == 1) return world;
  World alone;
  alone.generation = world.generation;
  alone.size = alone.local = alone.here = world.local;
  alone.shape = ReductionShape::flat(world.local);
  alone.time_limit = world.time_limit;
  return alone;
}

}  // namespace

CompiledUpdater::CompiledUpdater(std::shared_ptr<Updater> host, optim::Rule rule)
    : host_(std::move(host)), rule_(std::move(rule)) {
  parts_ = {.on_device = this, .late = this, .copies = this};
}

detail::GradientListener* CompiledUpdater::begin(int, Overlap) {
  throw UsageError(fmt::format("optimizer: {}", kNotCompiled));
}

Verdict CompiledUpdater::step(int, std::span<const at::Tensor>, const Vote&, const Deadline&) {
  throw UsageError(fmt::format("optimizer: {}", kNotCompiled));
}

UpdaterView CompiledUpdater::view(int replica) const {
  const UpdaterView here = host_->view(replica);
  return {here.parameters, here.layout, here.version + ahead_, here.learning_rate};
}

optim::StepScalars CompiledUpdater::scalars() const {
  const UpdaterState state = host_->state();
  const at::Tensor rows = detail::tensor_named(state, detail::kScalarsName);
  const auto& slots = layout().slots;
  at::Tensor first;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].trained) continue;
    const at::Tensor row = rows[static_cast<int64_t>(i)].contiguous();
    if (first.defined() && !first.equal(row))
      throw UsageError(fmt::format(
          "strategy tpu: parameter \"{}\" has had another number of updates, or other rates, than "
          "those before it, which one compiled step cannot go on with; begin from the weights "
          "alone (load())",
          slots[i].name));
    if (!first.defined()) first = row;
  }
  if (!first.defined()) return {};
  const auto* const numbers = first.const_data_ptr<double>();
  return {numbers[0], numbers[1], numbers[2], numbers[3], static_cast<int64_t>(numbers[4])};
}

void CompiledUpdater::bring_back() const {
  if (ahead_ == 0 || steps_ == nullptr) return;
  const CompiledSteps::Newest newest = steps_->newest();
  NamedTensors parameters;
  for (const ParameterSlot& slot : layout().slots)
    parameters.emplace_back(slot.name, newest.values.at(slot.name));
  take(newest, parameters);
  steps_->take_buffers(newest);
}

void CompiledUpdater::take(const CompiledSteps::Newest& newest,
                           const NamedTensors& parameters) const {
  const auto& slots = layout().slots;
  UpdaterState state{std::string(rule_.name()), newest.version, host_->learning_rate()};
  for (const ParameterSlot& slot : slots)
    for (int k = 0; slot.trained && k < rule_.num_states(); ++k)
      state.tensors.emplace_back(
          detail::state_tensor_name(rule_.state_name(k), slot.name),
          newest.values.at(fmt::format("{}.{}", slot.name, rule_.state_name(k))));
  state.tensors.emplace_back(
      detail::kScalarsName,
      detail::tensor_of_scalars(std::vector<optim::StepScalars>(slots.size(), newest.scalars)));
  host_->restore(state, parameters);
  ahead_ = newest.left_out;
}

NamedTensors CompiledUpdater::parameters_here() const {
  NamedTensors all;
  const auto& parameters = this->parameters(0);
  for (size_t i = 0; i < parameters.size(); ++i)
    all.emplace_back(layout().slots[i].name, parameters[i].detach().clone());
  return all;
}

// What was written is of the parameters; the optimizer's state is still the devices'.
void CompiledUpdater::take_over() {
  if (ahead_ > 0 && steps_ != nullptr) take(steps_->newest(), parameters_here());
  ahead_ = 0;
  ++writes_;
}

UpdaterState CompiledUpdater::state() const {
  bring_back();
  return host_->state();
}

void CompiledUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  host_->restore(state, parameters);
  ahead_ = 0;
  ++writes_;
}

void CompiledUpdater::rebind(const World& world, std::vector<NamedTensors> replicas) {
  complete();
  ahead_ = 0;
  host_->rebind(of_this_process(world), std::move(replicas));
  ++writes_;
}

void CompiledUpdater::scale_losses(const optim::LossScale&) {
  throw UsageError("strategy tpu: losses are not scaled; bfloat16 has the range of float32");
}

int64_t CompiledUpdater::forget_left_out() {
  if (steps_ == nullptr) return 0;
  const int64_t left_out = std::min(ahead_, steps_->take_back_left_out());
  ahead_ -= left_out;
  return left_out;
}

std::shared_ptr<CompiledUpdater> make_compiled_updater(const World& world,
                                                       const optim::Recipe& recipe,
                                                       std::vector<NamedTensors> replicas) {
  return std::make_shared<CompiledUpdater>(
      make_shared_updater(of_this_process(world), recipe, std::move(replicas)), recipe.rule());
}

}  // namespace tutti
