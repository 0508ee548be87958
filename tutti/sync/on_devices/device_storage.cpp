// Where parameters, gradients and optimizer states of the fused step on devices lie, and who
// updates what.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "tutti/net/arena.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/out_of_memory.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/on_devices/detail/device_updater.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace detail {
namespace {

at::Tensor zero_bytes(at::IntArrayRef sizes, at::Device device) {
  return at::zeros(sizes, at::TensorOptions().dtype(at::kByte).device(device));
}

constexpr const char* kMaking = "while the optimizer is made";

Run run_of(const ParameterSlot& slot, int64_t begin, int64_t end) {
  return {slot.dtype, byte_of(slot, begin), byte_of(slot, end)};
}

at::MemoryFormat format_of(const at::Tensor& parameter) {
  const bool as_usual =
      parameter.is_contiguous() || !parameter.is_contiguous(at::MemoryFormat::ChannelsLast);
  return as_usual ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
}

}  // namespace

DeviceUpdater::DeviceUpdater(const World& world, const optim::Recipe& recipe,
                             std::vector<NamedTensors> replicas, const DeviceSums& sums)
    : recipe_(recipe),
      rule_(recipe.rule()),
      layout_(Slots::of(slots_of(replicas.at(0)))),
      plan_(recipe, layout_),
      clips_(plan_.clips_norms() || plan_.clips_values()),
      world_(world),
      sums_(sums),
      next_learning_rate_(rule_.learning_rate()) {
  bind(std::move(replicas));
}

// A weight of a convolution may lie with channels innermost, which no rule that updates element by
// element sees: it stays so, and its gradient and states lie as it does.
at::Tensor DeviceUpdater::slot_of(const at::Tensor& bytes, size_t parameter) const {
  const ParameterSlot& slot = layout_.slots[parameter];
  return shaped(elements_of(bytes, run_of(slot, 0, slot.num_elements)), parameter);
}

at::Tensor DeviceUpdater::shaped(const at::Tensor& elements, size_t parameter) const {
  const auto& shape = layout_.slots[parameter].shape;
  if (formats_[parameter] == at::MemoryFormat::Contiguous) return elements.view(shape);
  return elements.view({shape[0], shape[2], shape[3], shape[1]}).permute({0, 3, 1, 2});
}

// Its elements in the order of the slot; a view of what lies so.
at::Tensor DeviceUpdater::flat(const at::Tensor& tensor, size_t parameter) const {
  const bool as_usual = formats_[parameter] == at::MemoryFormat::Contiguous;
  return (as_usual ? tensor : tensor.permute({0, 2, 3, 1})).reshape({-1});
}

void DeviceUpdater::bind(std::vector<NamedTensors> replicas) {
  const at::NoGradGuard no_grad;
  leave_processes();
  formats_.clear();
  for (const auto& [name, parameter] : replicas[0]) formats_.push_back(format_of(parameter));
  shares_values_ = std::ranges::all_of(
      world_.queues, [&](const DeviceQueue& queue) { return queue.device() == device(0); });
  lanes_ = std::vector<Lane>(static_cast<size_t>(world_.local));
  owned_ = std::vector<Owned>(static_cast<size_t>(world_.local));
  const auto for_each_replica = [&](auto make) {
    for (int replica = 0; replica < world_.local; ++replica)
      with_memory(queue(replica), kMaking, [&] { make(replica); });
  };
  for_each_replica([&](int replica) {
    values_of(replica) = shares_values_ && replica > 0
                             ? values_of(0)
                             : zero_bytes({layout_.total_bytes}, device(replica));
  });
  take_values(replicas[0]);
  for_each_replica(
      [&](int replica) { make_lane(replica, std::move(replicas[static_cast<size_t>(replica)])); });
  std::vector<double> shares = world_.shares;
  if (shares.empty()) shares.assign(static_cast<size_t>(world_.size), 1.0);
  // One piece a replica of the job, wherever they are, so that norms are made of the same parts; a
  // local replica owns as many as there are processes.
  const auto stretches = layout_.cut(shares);
  const auto processes = static_cast<size_t>(world_.processes());
  for_each_replica([&](int replica) {
    make_owned(replica,
               std::span(stretches).subspan(static_cast<size_t>(replica) * processes, processes));
  });
  if (plan_.clips_norms()) find_squares();
  if (captures_) make_rates();
  parts_ = {.on_device = this, .capture = world_.size == 1 ? this : nullptr};
  if (across()) bind_to_processes();
}

// No number, which is no rate: the first step sends them.
void DeviceUpdater::make_rates() {
  for (int replica = 0; replica < world_.local; ++replica) {
    Owned& owned = owned_[static_cast<size_t>(replica)];
    owned.rates.clear();
    for (size_t group = 0; group < owned.places.size(); ++group)
      owned.rates.push_back(
          at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device(replica))));
    owned.rates_there.assign(owned.places.size(), std::nan(""));
  }
}

void DeviceUpdater::take_values(const NamedTensors& values) {
  const at::NoGradGuard no_grad;
  for (Lane& lane : lanes_) {
    if (shares_values_ && &lane != &lanes_[0]) break;
    for (size_t i = 0; i < layout_.slots.size(); ++i)
      copy_queued(slot_of(lane.values, i), values[i].second);
  }
}

void DeviceUpdater::make_lane(int replica, NamedTensors parameters) {
  Lane& lane = lanes_[static_cast<size_t>(replica)];
  const size_t count = layout_.slots.size();
  if (!alone()) lane.gradients = zero_bytes({layout_.total_bytes}, device(replica));
  for (size_t i = 0; i < count; ++i) {
    at::Tensor parameter = parameters[i].second;
    parameter.set_data(slot_of(lane.values, i));
    lane.parameters.push_back(std::move(parameter));
    if (!alone()) lane.views.push_back(slot_of(lane.gradients, i));
  }
  lane.keep.resize(count);
  lane.used.resize(count + kVoteWords + 1);
  lane.any.resize(lane.used.size());
  lane.blank.resize(count);
  lane.scalars.resize(count);
  lane.flags = at::zeros({2}, at::TensorOptions().dtype(at::kFloat).device(device(replica)));
}

void DeviceUpdater::make_owned(int replica, std::span<const std::vector<Stretch>> pieces) {
  Owned& owned = owned_[static_cast<size_t>(replica)];
  for (const auto& piece : pieces)
    owned.stretches.insert(owned.stretches.end(), piece.begin(), piece.end());
  for (const Stretch& stretch : owned.stretches) add_to(owned.runs, layout_, stretch);
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(device(replica));
  owned.begin = owned.runs.empty() ? 0 : owned.runs.front().begin;
  owned.bytes = owned.runs.empty() ? 0 : round_up(owned.runs.back().end, kLineBytes) - owned.begin;
  owned.states = zero_bytes({rule_.num_states(), owned.bytes}, device(replica));
  if (!adds_in_place())
    owned.scratch = zero_bytes({exact() ? 1 : world_.local, owned.bytes}, device(replica));
  for (const Stretch& stretch : owned.stretches) {
    const ParameterSlot& slot = layout_.slots[static_cast<size_t>(stretch.parameter)];
    owned.sums.push_back(alone() ? at::Tensor()
                                 : sum_of(replica, run_of(slot, stretch.begin, stretch.end)));
  }
  if (exact()) owned.exact = exact_sums(replica, pieces);
  owned.flags = at::zeros({world_.local, 2}, scalar);
  owned.left_out = world_.size > 1 ? at::zeros({2}, scalar) : lanes_[0].flags;
  owned.missed = at::zeros({}, scalar);
  make_parts(replica);
}

// Where sums of an owner's run come to lie.
at::Tensor DeviceUpdater::sum_of(int owner, const Run& run) {
  if (adds_in_place()) return elements_of(lanes_[0].gradients, run);
  const Owned& owned = owned_[static_cast<size_t>(owner)];
  return elements_of(owned.scratch[0], run, owned.begin);
}

at::Tensor DeviceUpdater::state_at(const Owned& owned, int state, const Stretch& stretch) const {
  const ParameterSlot& slot = layout_.slots[static_cast<size_t>(stretch.parameter)];
  return elements_of(owned.states[state], run_of(slot, stretch.begin, stretch.end), owned.begin);
}

void DeviceUpdater::make_parts(int replica) {
  Owned& owned = owned_[static_cast<size_t>(replica)];
  const auto& groups = recipe_.groups();
  owned.parts.resize(groups.size() + 1);
  owned.places.resize(groups.size() + 1);
  owned.steps = at::zeros({std::ssize(owned.stretches)},
                          at::TensorOptions().dtype(at::kFloat).device(device(replica)));
  for (int i = 0; i < static_cast<int>(owned.stretches.size()); ++i) {
    const Stretch& stretch = owned.stretches[static_cast<size_t>(i)];
    const ParameterSlot& slot = layout_.slots[static_cast<size_t>(stretch.parameter)];
    const optim::Group* const group = recipe_.group_of(slot.name);
    const auto number =
        group == nullptr ? groups.size() : static_cast<size_t>(group - groups.data());
    DeviceSlices& part = owned.parts[number];
    owned.places[number].push_back(i);
    part.values.push_back(
        elements_of(values_of(replica), run_of(slot, stretch.begin, stretch.end)));
    part.sums.push_back(owned.sums[static_cast<size_t>(i)]);
    part.steps.push_back(owned.steps[i]);
    for (int state = 0; state < rule_.num_states(); ++state)
      part.states[static_cast<size_t>(state)].push_back(state_at(owned, state, stretch));
  }
}

// A parameter's squares are those of its stretches, which may have several owners: places of them
// among all, in rows, the last of which are filled up with the place of a zero.
void DeviceUpdater::find_squares() {
  std::vector<std::vector<int64_t>> places(layout_.slots.size());
  int64_t all = 0;
  for (const Owned& owned : owned_)
    for (const Stretch& stretch : owned.stretches)
      places[static_cast<size_t>(stretch.parameter)].push_back(all++);
  size_t most = 1;
  for (const auto& own : places) most = std::max(most, own.size());
  std::vector<int64_t> squares_of;
  for (size_t row = 0; row < most; ++row)
    for (const auto& own : places) squares_of.push_back(row < own.size() ? own[row] : all);
  for (int replica = 0; replica < world_.local; ++replica) {
    const auto wide = at::TensorOptions().dtype(at::kDouble).device(device(replica));
    with_memory(queue(replica), kMaking, [&] {
      Owned& owned = owned_[static_cast<size_t>(replica)];
      owned.squares = at::zeros({std::ssize(owned.stretches)}, wide);
      owned.all_squares = at::zeros({all + 1}, wide);
      owned.squares_of = on_device(at::tensor(squares_of, at::kLong), device(replica));
    });
  }
}

// ---- for checkpoints ----

void DeviceUpdater::drain(const std::string& what) const {
  const Deadline deadline(patience_with_device(world_.time_limit));
  for (const DeviceQueue& queue : world_.queues) queue.drain(deadline, what);
}

// Where one owner has all of it, its memory; else put together on the first replica's device. Both
// on the current queues, with which those of the replicas have been joined.
at::Tensor DeviceUpdater::whole_state(int state, size_t parameter) const {
  const ParameterSlot& slot = layout_.slots[parameter];
  const auto options = at::TensorOptions().dtype(scalar_type_of(slot.dtype)).device(device(0));
  at::Tensor whole = slot.num_elements == 0 ? at::empty({0}, options) : at::Tensor();
  for (const Owned& owned : owned_)
    for (const Stretch& stretch : owned.stretches) {
      if (static_cast<size_t>(stretch.parameter) != parameter) continue;
      const at::Tensor part = state_at(owned, state, stretch);
      if (part.numel() == slot.num_elements) return shaped(part, parameter);
      if (!whole.defined()) whole = at::empty({slot.num_elements}, options);
      whole.narrow(0, stretch.begin, part.numel()).copy_(part, /*non_blocking=*/true);
    }
  return shaped(whole, parameter);
}

NamedTensors DeviceUpdater::whole_states() const {
  const at::NoGradGuard no_grad;
  NamedTensors states;
  for (int k = 0; k < rule_.num_states(); ++k)
    for (size_t i = 0; i < layout_.slots.size(); ++i)
      if (layout_.slots[i].trained)
        states.emplace_back(state_tensor_name(rule_.state_name(k), layout_.slots[i].name),
                            whole_state(k, i));
  return states;
}

// Where steps may be left out, only the devices know how many were made; the host's scalars are
// counted up to them again.
std::vector<optim::StepScalars> DeviceUpdater::scalars_of_steps() const {
  drain("the update whose state is saved");
  std::vector<optim::StepScalars> scalars(layout_.slots.size());
  for (const Owned& owned : owned_) {
    const at::Tensor made = on_host(owned.steps, Deadline(patience_with_device(world_.time_limit)),
                                    "steps made, which are saved");
    for (size_t i = 0; i < owned.stretches.size(); ++i) {
      const int parameter = owned.stretches[i].parameter;
      optim::StepScalars& own = scalars[static_cast<size_t>(parameter)];
      while (own.count < std::llround(made.const_data_ptr<float>()[i]))
        own = plan_.rule(parameter).next(own, plan_.rate(parameter, learning_rate()));
    }
  }
  return scalars;
}

UpdaterState DeviceUpdater::state() const {
  require_whole();
  UpdaterState state{std::string(rule_.name()), version(), learning_rate(), whole_states()};
  state.tensors.emplace_back(
      kScalarsName, tensor_of_scalars(lanes_[0].scale ? scalars_of_steps() : lanes_[0].scalars));
  return state;
}

void DeviceUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  drain("the update before a state is restored");
  NamedTensors whole = whole_states();
  const auto scalars = scalars_of(state, rule_.name(), layout_, parameters, whole);
  take_values(parameters);
  for (Owned& owned : owned_)
    for (size_t group = 0; group < owned.parts.size(); ++group)
      for (size_t i = 0; i < owned.places[group].size(); ++i) {
        const Stretch& stretch = owned.stretches[static_cast<size_t>(owned.places[group][i])];
        const auto parameter = static_cast<size_t>(stretch.parameter);
        DeviceSlices& part = owned.parts[group];
        part.steps[i].fill_(static_cast<double>(scalars[parameter].count));
        for (int k = 0; k < rule_.num_states(); ++k) {
          const auto name = state_tensor_name(rule_.state_name(k), layout_.slots[parameter].name);
          part.states[static_cast<size_t>(k)][i].copy_(
              flat(tensor_named(state, name), parameter)
                  .narrow(0, stretch.begin, stretch.end - stretch.begin));
        }
      }
  for (Lane& lane : lanes_) lane.scalars = scalars;
  cut_off_ = false;
  begun_ = ended_ = state.version;
  next_learning_rate_ = state.learning_rate;
}

}  // namespace detail

bool can_update_on_devices(const World& world, const optim::Recipe& recipe, std::string* why) {
  const auto because = [&](std::string words) {
    if (why != nullptr) *why = std::move(words);
    return false;
  };
  if (world.processes() > 1 && world.device_groups.empty())
    return because(world.no_device_groups.empty() ? "replicas are in several processes"
                                                  : world.no_device_groups);
  if (!world.on_devices() || !std::ranges::all_of(world.queues, &DeviceQueue::on_device))
    return because("some replicas compute on the CPU");
  if (!detail::updates_on_devices(recipe.rule()))
    return because(fmt::format("LibTorch has no kernel of {} for devices", recipe.rule().name()));
  return true;
}

std::shared_ptr<Updater> make_device_updater(const World& world, const optim::Recipe& recipe,
                                             std::vector<NamedTensors> replicas,
                                             const DeviceSums& sums) {
  return std::make_shared<detail::DeviceUpdater>(world, recipe, std::move(replicas), sums);
}

}  // namespace tutti
