// Where parameters, optimizer states and gradients of the fused step lie, and who updates what.

#include <cstring>

#include "tutti/sync/shared/detail/shared_updater.h"

namespace tutti::detail {
namespace {

Array aligned_bytes(int64_t bytes) { return Array::zeros(DType::uint8, {bytes}); }

}  // namespace

// One process: plain memory. Several: the part of each host's first replica in a shared arena holds
// header and values, every replica's part its used bytes and its copied gradients.
void SharedUpdater::place_storage() {
  lanes_.resize(world_.local);
  const int64_t header_bytes = sizeof(Header);
  const int64_t values_bytes = (1 + rule_.num_states()) * layout_.total_bytes;
  const int64_t blocks = plan_.needs_sums() ? plan_.num_blocks() : 0;
  const int64_t norm_bytes = blocks * static_cast<int64_t>(sizeof(double) + sizeof(optim::Squares));
  const auto take_values_at = [&](std::byte* memory) {
    values_ = memory;
    auto* const squares = reinterpret_cast<double*>(memory + values_bytes);
    gradient_squares_ = {squares, static_cast<size_t>(blocks)};
    measured_ = {reinterpret_cast<optim::Squares*>(squares + blocks), static_cast<size_t>(blocks)};
  };
  if (world_.one_process()) {
    Array memory = aligned_bytes(header_bytes + values_bytes + norm_bytes);
    header_ = new (memory.data()) Header{};
    take_values_at(static_cast<std::byte*>(memory.data()) + header_bytes);
    owner_ = memory.owner();
    return;
  }
  const auto slots = static_cast<int64_t>(layout_.slots.size());
  const int64_t ready_bytes = (slots + 1) * static_cast<int64_t>(sizeof(std::atomic<int64_t>));
  const int64_t used_bytes = (ready_bytes + slots + kVoteWords + 63) / 64 * 64;
  std::vector<SharedParts> parts(world_.local);
  for_each_local(world_, [&](int local) {
    HostView& view = lanes_[local].view.emplace(host_view(world_.groups[local]));
    const int64_t shared = view.inside.rank() == 0 ? header_bytes + values_bytes + norm_bytes : 0;
    parts[local] =
        view.inside.allocate(used_bytes + layout_.total_bytes + shared, world_.time_limit);
  });
  owner_ = parts[0].owner;
  for (const MemorySpan& part : parts[0].parts) {
    Gradients gradients;
    gradients.ready = static_cast<std::atomic<int64_t>*>(part.data);  // zeros are valid ones
    gradients.used = static_cast<uint8_t*>(part.data) + ready_bytes;
    gradients.base = static_cast<std::byte*>(part.data) + used_bytes;
    gradients_.push_back(std::move(gradients));
  }
  std::byte* shared = gradients_[0].base + layout_.total_bytes;
  header_ = reinterpret_cast<Header*>(shared);  // zeroed memory is a valid Header
  take_values_at(shared + header_bytes);
}

void SharedUpdater::take_values(const NamedTensors& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor source = values[i].second.detach().contiguous();
    std::memcpy(values_ + layout_.slots[i].offset_bytes, source.data_ptr(), source.nbytes());
  }
}

// Rank 0's values are there, and go to the other hosts in slices.
void SharedUpdater::share_values() {
  if (world_.one_process()) return;
  for_each_local(world_, [&](int local) {
    HostView& view = *lanes_[local].view;
    view.inside.barrier(world_.time_limit);
    for (size_t rail = 0; rail < view.rails.size(); ++rail) {
      const int64_t slice = view.first_slice + static_cast<int64_t>(rail);
      const int64_t begin = layout_.total_bytes * slice / view.num_slices;
      const int64_t end = layout_.total_bytes * (slice + 1) / view.num_slices;
      view.rails[rail]
          .broadcast({values_ + begin, end - begin, DType::uint8}, 0, world_.time_limit)
          .wait(world_.time_limit);
    }
    view.inside.barrier(world_.time_limit);
  });
}

void SharedUpdater::bind(std::vector<NamedTensors> replicas) {
  share_values();
  const size_t count = layout_.slots.size();
  lanes_.resize(world_.local);
  if (world_.one_process()) {
    lanes_ = std::vector<Lane>(world_.local);
    gradients_.assign(world_.size, {});
    own_memory_.clear();
    for (Gradients& gradients : gradients_) {
      const auto ready_bytes = static_cast<int64_t>((count + 1) * sizeof(std::atomic<int64_t>));
      own_memory_.push_back(aligned_bytes(ready_bytes + static_cast<int64_t>(count) + kVoteWords));
      gradients.ready = static_cast<std::atomic<int64_t>*>(own_memory_.back().data());
      gradients.used = static_cast<uint8_t*>(own_memory_.back().data()) + ready_bytes;
      gradients.pointers.assign(count, nullptr);
    }
  }
  const bool several_hosts = lanes_[0].view && !lanes_[0].view->rails.empty();
  shape_here_ = several_hosts ? ReductionShape::flat(lanes_[0].view->inside.size()) : world_.shape;
  for (int local = 0; local < world_.local; ++local) {
    Lane& lane = lanes_[local];
    for (size_t i = 0; i < count; ++i) {
      at::Tensor parameter = replicas[local][i].second;
      const ParameterSlot& slot = layout_.slots[i];
      parameter.set_data(view_memory(values_ + slot.offset_bytes, slot, owner_));
      lane.places.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(i));
      lane.parameters.push_back(std::move(parameter));
    }
    lane.keep.resize(count);
    lane.copied.assign(count, 0);
    lane.taken.assign(count, 0);
    lane.early.updater = this;
    lane.early.replica = local;
    lane.scalars.resize(count);
    lane.used.resize(count + kVoteWords);
    lane.inputs.resize(gradients_.size());
    lane.scratch = Array::zeros(DType::float64, {kChunkElements});
    lane.rank = lane.view ? lane.view->inside.rank() : local;
    take_slice(local);
    if (header_->begun.load() == 0) start_states(lane);
    if (!world_.one_process())
      lane.hooks = ReadyHooks(lane.parameters, [this, local](int parameter) {
        Lane& mine = lanes_[local];
        if (mine.armed) copy_gradient(local, parameter, mine.parameters[parameter].grad());
      });
  }
  if (measuring_) place_squares();
}

void SharedUpdater::take_slice(int local) {
  Lane& lane = lanes_[local];
  assign_pieces(lane);
  lane.updated.assign(lane.stretches.size(), 0);
  const bool updates = !world_.in_turn() || local == 0;
  if (plan_.needs_sums() && !lane.sums && updates) make_room_for_sums(lane);
}

// Of several hosts all have the same slices, whatever their replicas' shares.
void SharedUpdater::share_out(const std::vector<double>& shares) {
  require_whole();
  world_.shares = shares;
  if (lanes_[0].view && !lanes_[0].view->rails.empty()) return;
  for (int local = 0; local < world_.local; ++local) take_slice(local);
}

// The replicas of a host own all of it among themselves, and over several hosts the same slices as
// the replicas of the others do.
void SharedUpdater::assign_pieces(Lane& lane) {
  const bool several_hosts = lane.view && !lane.view->rails.empty();
  int first = world_.in_turn() ? 0 : lane.rank;
  int last = first + 1;
  std::vector<double> shares = world_.shares;
  if (several_hosts) {
    shares.assign(lane.view->num_slices, 1.0);
    first = lane.view->first_slice;
    last = first + static_cast<int>(lane.view->rails.size());
  } else if (shares.empty() || world_.in_turn()) {
    shares.assign(world_.in_turn() ? 1 : world_.size, 1.0);
  }
  const auto stretches = layout_.cut(shares);
  if (several_hosts) lane.sums.emplace(*lane.view, layout_, stretches);
  lane.owned.assign(layout_.slots.size(), {});
  lane.stretches.clear();
  for (int slice = first; slice < last; ++slice)
    for (const Stretch& stretch : stretches[slice]) {
      Stretch& owned = lane.owned[stretch.parameter];
      const bool goes_on = owned.end != 0;
      owned = {stretch.parameter, goes_on ? owned.begin : stretch.begin, stretch.end};
    }
  for (const Stretch& stretch : lane.owned)
    if (stretch.end > stretch.begin) lane.stretches.push_back(stretch);
}

// The stretches of one replica follow each other in the layout.
void SharedUpdater::make_room_for_sums(Lane& lane) {
  if (lane.stretches.empty()) return;
  const auto byte_of = [&](int parameter, int64_t element) {
    const ParameterSlot& slot = layout_.slots[parameter];
    return slot.offset_bytes + element * size_of(slot.dtype);
  };
  lane.own_begin = byte_of(lane.stretches.front().parameter, lane.stretches.front().begin);
  const int64_t end = byte_of(lane.stretches.back().parameter, lane.stretches.back().end);
  lane.own_sums = aligned_bytes(end - lane.own_begin);
}

// By who owns a stretch; memory is zero before.
void SharedUpdater::start_states(const Lane& lane) {
  for (int state = 0; state < rule_.num_states(); ++state) {
    const double start = rule_.state_start(state);
    if (start == 0) continue;
    for (const Stretch& stretch : lane.stretches) {
      const ParameterSlot& slot = layout_.slots[stretch.parameter];
      void* const at = state_at(state, slot.offset_bytes + stretch.begin * size_of(slot.dtype));
      const int64_t count = stretch.end - stretch.begin;
      if (slot.dtype == DType::float64)
        std::fill_n(static_cast<double*>(at), count, start);
      else
        std::fill_n(static_cast<float*>(at), count, static_cast<float>(start));
    }
  }
}

// ---- for checkpoints ----

NamedTensors SharedUpdater::named_states() const {
  NamedTensors states;
  for (int k = 0; k < rule_.num_states(); ++k)
    for (const ParameterSlot& slot : layout_.slots)
      states.emplace_back(state_tensor_name(rule_.state_name(k), slot.name),
                          view_memory(state_at(k, slot.offset_bytes), slot, owner_));
  return states;
}

UpdaterState SharedUpdater::state() const {
  require_whole();
  UpdaterState state{std::string(rule_.name()), version(), learning_rate(), named_states()};
  state.tensors.emplace_back(kScalarsName, tensor_of_scalars(lanes_[0].scalars));
  return state;
}

// All replicas of this host are between steps.
void SharedUpdater::meet_here() {
  if (world_.one_process()) return;
  for_each_local(world_, [&](int local) { lanes_[local].view->inside.barrier(world_.time_limit); });
}

void SharedUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  NamedTensors own = named_states();
  const auto scalars = scalars_of(state, rule_.name(), layout_, parameters, own);
  meet_here();
  if (lanes_[0].rank == 0) {
    take_values(parameters);
    copy_states(state, own);
    header_->begun = header_->ended = state.version;
    header_->learning_rate = state.learning_rate;
  }
  meet_here();
  for (Lane& lane : lanes_) lane.scalars = scalars;
  next_learning_rate_ = state.learning_rate;
}

}  // namespace tutti::detail
