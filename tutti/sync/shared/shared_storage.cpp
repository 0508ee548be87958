// Where parameters, optimizer states and gradients of the fused step lie, and who updates what.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tutti/base/detail/large_pages.h"
#include "tutti/base/host.h"
#include "tutti/sync/shared/detail/shared_updater.h"

namespace tutti::detail {
namespace {

// Zeros, in large pages: a step reads all of it, and products jump from row to row of a weight.
Array aligned_bytes(int64_t bytes) {
  const auto room = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  std::shared_ptr<void> memory(allocate_large(room), std::free);
  if (!memory) throw Error(fmt::format("no memory for {} of parameters", size_words(bytes)));
  std::memset(memory.get(), 0, room);
  return Array::view(memory.get(), DType::uint8, {bytes}, memory);
}

}  // namespace

// One process has one memory, whoever meets whom in it.
void SharedUpdater::join_host() {
  lanes_ = std::vector<Lane>(world_.local);
  for (int local = 0; local < world_.local; ++local) {
    Lane& lane = lanes_[local];
    const Group group = world_.group_of(local);
    const bool several = world_.processes() > 1;
    lane.view = several ? host_view(group) : HostView{.inside = group};
    lane.rank = several ? lane.view.inside.rank() : local;
  }
}

// By rank on this host, what all replicas there see, zeroed: `of_each` bytes, and of the first as
// many more as `of_first` says.
SharedParts SharedUpdater::memory_here(int64_t of_first, int64_t of_each) {
  if (world_.processes() == 1) {
    const auto own = std::make_shared<std::vector<Array>>();
    SharedParts all{{}, own};
    for (int local = 0; local < world_.local; ++local) {
      own->push_back(aligned_bytes(of_each + (local == 0 ? of_first : 0)));
      all.parts.push_back(own->back().span());
    }
    return all;
  }
  std::vector<SharedParts> parts(world_.local);
  for_each_local(world_, [&](int local) {
    Group& inside = lanes_[local].view.inside;
    const int64_t bytes = of_each + (inside.rank() == 0 ? of_first : 0);
    parts[local] = inside.allocate(bytes, world_.time_limit);
  });
  return parts[0];
}

void SharedUpdater::place_values() {
  const int64_t header_bytes = sizeof(Header);
  const int64_t values_bytes = (1 + rule_.num_states()) * layout_.total_bytes;
  const int64_t blocks = plan_.needs_sums() ? plan_.num_blocks() : 0;
  const int64_t norm_bytes = blocks * static_cast<int64_t>(sizeof(double) + sizeof(optim::Squares));
  const SharedParts memory = memory_here(header_bytes + values_bytes + norm_bytes, 0);
  owner_ = memory.owner;
  header_ = static_cast<Header*>(memory.parts[0].data);  // zeroed memory is a valid Header
  values_ = static_cast<std::byte*>(memory.parts[0].data) + header_bytes;
  auto* const squares = reinterpret_cast<double*>(values_ + values_bytes);
  gradient_squares_ = {squares, static_cast<size_t>(blocks)};
  measured_ = {reinterpret_cast<optim::Squares*>(squares + blocks), static_cast<size_t>(blocks)};
}

// Used bytes; and copies, where peers cannot read what autograd leaves.
void SharedUpdater::place_gradients() {
  const size_t count = layout_.slots.size();
  const auto ready_bytes = static_cast<int64_t>((2 * count + 2) * sizeof(std::atomic<int64_t>));
  const int64_t used_bytes =
      (ready_bytes + static_cast<int64_t>(count) + kVoteWords + 63) / 64 * 64;
  const bool copied = world_.processes() > 1;
  const SharedParts memory = memory_here(0, used_bytes + (copied ? layout_.total_bytes : 0));
  gradients_owner_ = memory.owner;
  gradients_.clear();
  for (const MemorySpan& part : memory.parts) {
    Gradients& gradients = gradients_.emplace_back();
    gradients.ready = static_cast<std::atomic<int64_t>*>(part.data);  // zeros are valid ones
    gradients.written = gradients.ready + count + 1;
    gradients.rests = gradients.written + count;
    gradients.used = static_cast<uint8_t*>(part.data) + ready_bytes;
    if (copied) gradients.base = static_cast<std::byte*>(part.data) + used_bytes;
    gradients.pointers.assign(count, nullptr);
  }
}

void SharedUpdater::take_values(const NamedTensors& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor source = values[i].second.detach().contiguous();
    std::memcpy(values_ + layout_.slots[i].offset_bytes, source.data_ptr(), source.nbytes());
  }
}

// Rank 0's values are there, and go to the other hosts in slices.
void SharedUpdater::share_values() {
  meet_here();
  if (!several_hosts()) return;
  for_each_local(world_, [&](int local) {
    HostView& view = lanes_[local].view;
    for (size_t rail = 0; rail < view.rails.size(); ++rail) {
      const int64_t slice = view.first_slice + static_cast<int64_t>(rail);
      const int64_t begin = layout_.total_bytes * slice / view.num_slices;
      const int64_t end = layout_.total_bytes * (slice + 1) / view.num_slices;
      view.rails[rail]
          .broadcast({values_ + begin, end - begin, DType::uint8}, 0, world_.time_limit)
          .wait(world_.time_limit);
    }
  });
  meet_here();
}

void SharedUpdater::bind(std::vector<NamedTensors> replicas) {
  share_values();
  const size_t count = layout_.slots.size();
  shape_here_ = several_hosts() ? ReductionShape::flat(lanes_[0].view.inside.size()) : world_.shape;
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
    lane.summed.assign(count, 0);
    lane.unread.assign(count, 0);
    lane.unwritten = std::make_unique<std::atomic<int>[]>(count);
    lane.taken.assign(count, 0);
    lane.early.updater = this;
    lane.early.replica = local;
    lane.scalars.resize(count);
    lane.used.resize(count + kVoteWords);
    lane.inputs.resize(gradients_.size());
    lane.scratch = Array::zeros(DType::float64, {kChunkElements});
    take_slice(local);
    if (header_->begun.load() == 0) start_states(lane);
    if (gradients_[lane.rank].base != nullptr)
      lane.hooks = ReadyHooks(
          lane.parameters,
          [this, local](int parameter) {
            Lane& mine = lanes_[local];
            if (mine.armed) copy_gradient(local, parameter, mine.parameters[parameter].grad());
            if (mine.armed && mine.tells) tell(local, parameter);
          },
          several_hosts());
  }
  if (measuring_) place_squares();
  late_.reset();
  if (can_be_late()) {
    std::vector<BeforeUse::Range> ranges;
    for (size_t i = 0; i < count; ++i) {
      const ParameterSlot& slot = layout_.slots[i];
      const std::byte* const begin = values_ + slot.offset_bytes;
      const int64_t bytes = slot.num_elements * size_of(slot.dtype);
      ranges.push_back({begin, begin + bytes, static_cast<int>(i)});
    }
    late_ = std::make_unique<BeforeUse>(std::move(ranges), static_cast<int>(count),
                                        [this](int parameter) { await_written(parameter); });
  }
  parts_.late = late_ ? this : nullptr;
}

void SharedUpdater::take_slice(int local) {
  Lane& lane = lanes_[local];
  assign_pieces(lane);
  lane.updated.assign(lane.stretches.size(), 0);
  const bool updates = local == world_.on_thread_of(local).front();
  if (plan_.needs_sums() && !lane.sums && updates) make_room_for_sums(lane);
}

// Of several hosts all have the same slices, whatever their replicas' shares.
void SharedUpdater::share_out(const std::vector<double>& shares) {
  require_whole();
  world_.shares = shares;
  if (several_hosts()) return;
  for (int local = 0; local < world_.local; ++local) take_slice(local);
}

// The replicas of a host that meet own all of it among themselves, and over several hosts the same
// slices as the replicas of the others do.
void SharedUpdater::assign_pieces(Lane& lane) {
  const HostView& view = lane.view;
  int first = view.inside.rank();
  int last = first + 1;
  std::vector<double> shares = world_.shares;
  if (several_hosts()) {
    shares.assign(view.num_slices, 1.0);
    first = view.first_slice;
    last = first + static_cast<int>(view.rails.size());
  } else if (std::ssize(shares) != view.inside.size()) {
    shares.assign(view.inside.size(), 1.0);
  }
  const auto stretches = layout_.cut(shares);
  if (several_hosts())
    lane.sums.emplace(view, layout_, stretches,
                      HostSums::Options{.late = can_be_late(), .piece_bytes = world_.piece_bytes});
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
      if (slot.trained)
        states.emplace_back(state_tensor_name(rule_.state_name(k), slot.name),
                            view_memory(state_at(k, slot.offset_bytes), slot, owner_));
  return states;
}

UpdaterState SharedUpdater::state() const {
  if (late_) late_->require_all();
  require_whole();
  UpdaterState state{std::string(rule_.name()), version(), learning_rate(), named_states()};
  state.tensors.emplace_back(kScalarsName, tensor_of_scalars(lanes_[0].scalars));
  return state;
}

// All replicas of this host are between steps.
void SharedUpdater::meet_here() {
  if (world_.processes() == 1) return;
  for_each_local(world_, [&](int local) { meet(lanes_[local]); });
}

void SharedUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  complete();
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
