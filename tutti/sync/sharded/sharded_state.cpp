// Of the updater whose ranks own slices: where values and state lie, and the whole for checkpoints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/sharded/detail/sharded_updater.h"
#include "tutti/sync/sharded/detail/spare_pages.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

void fill(DType dtype, void* at, int64_t num_elements, double value) {
  if (dtype == DType::float64)
    std::fill_n(static_cast<double*>(at), num_elements, value);
  else
    std::fill_n(static_cast<float*>(at), num_elements, static_cast<float>(value));
}

}  // namespace

SlicesUpdater::SlicesUpdater(const World& world, const optim::Recipe& recipe,
                             std::vector<NamedTensors> replicas, const ShardedOptions& options)
    : rule_(recipe.rule()),
      options_(options),
      layout_(Slots::of(slots_of(replicas.at(0)))),
      plan_(recipe, layout_),
      world_(world),
      lanes_(static_cast<size_t>(world.local)),
      learning_rate_(rule_.learning_rate()) {
  parts_.gathers = this;
  if (options_.bucket_bytes < 1)
    throw UsageError(fmt::format("bucket_bytes is {}; expected 1 at least", options_.bucket_bytes));
  if (world_.group_of(0).size() < world_.size)
    throw UsageError(
        "make_sharded_updater: these replicas are not of one group, in which each would own a "
        "slice; where they take turns make_shared_updater gives the same bits");
  join_owners();
  std::vector<double> shares = world_.shares;
  const int num_owners = lanes_[0].owners.size();
  if (std::ssize(shares) != num_owners) shares.assign(static_cast<size_t>(num_owners), 1.0);
  shards_.emplace(layout_, options_.bucket_bytes, shares);
  for_each_local(world_, [&](int local) {
    const auto number = static_cast<size_t>(local);
    bind(lanes_[number], std::move(replicas[number]));
    if (options_.shard == Shard::parameters) give_units(local);
  });
}

// Collective: ranks with the same place on the axis data own the whole among themselves.
void SlicesUpdater::join_owners() {
  const auto& mesh = world_.mesh;
  const bool parted = mesh.size(mesh::Axis::shard) > 1 && mesh.size(mesh::Axis::data) > 1;
  for_each_local(world_, [&](int local) {
    Lane& lane = lanes_[static_cast<size_t>(local)];
    lane.all = lane.owners = world_.group_of(local);
    if (!parted) return;
    const int color = world_.place_of_local(local)[static_cast<size_t>(mesh::Axis::data)];
    lane.owners = split_of_owners(local, color);
  });
}

// Collective: of those of this rank's, by `color`. Its errors say who they are.
Group SlicesUpdater::split_of_owners(int local, int color) {
  Group& owners = lanes_[static_cast<size_t>(local)].owners;
  Group split = *owners.split(color, owners.rank(), world_.time_limit);
  std::vector<int> members(static_cast<size_t>(world_.size));
  std::iota(members.begin(), members.end(), 0);
  if (split.size() < world_.size)
    members = world_.mesh.members(world_.first_rank + local, {mesh::Axis::shard});
  std::vector<std::string> words;
  for (const int member : members)
    words.push_back(fmt::format(
        "{} is rank {}", words.size(),
        world_.job_ranks.empty() ? member : world_.job_ranks[static_cast<size_t>(member)]));
  split.say_members(fmt::format("of who has slices of a whole, where {}", fmt::join(words, ", ")));
  return split;
}

// Collective over all ranks.
void SlicesUpdater::bind(Lane& lane, NamedTensors replica) {
  const at::NoGradGuard no_grad;
  lane.values = mapped_zeros(shards_->row_bytes());
  for (size_t i = 0; i < replica.size(); ++i) {
    const ParameterSlot& slot = layout_.slots[i];
    at::Tensor parameter = replica[i].second;
    at::Tensor own = parameter.detach().clone(at::MemoryFormat::Contiguous);
    if (slot.trained) {
      const at::Tensor view = view_memory(lane.row() + shards_->row_bytes_of(static_cast<int>(i)),
                                          slot, lane.values.owner());
      view.copy_(own);
      own = view;
    } else {
      lane.frozen_bytes += static_cast<int64_t>(own.nbytes());
      lane.all.broadcast(tutti::span_of(own), 0, world_.time_limit).wait(world_.time_limit);
    }
    parameter.set_data(own);
    lane.parameters.push_back(std::move(parameter));
  }
  lane.all.broadcast(lane.values.span(), 0, world_.time_limit).wait(world_.time_limit);
  lane.scalars.resize(replica.size());
  if (plan_.clips_norms()) lane.squares.resize(static_cast<size_t>(plan_.num_blocks()));
  if (plan_.measures()) lane.measured.resize(static_cast<size_t>(plan_.num_blocks()));
  start_states(lane);
  lane.gradients.emplace(
      lane.all,
      SlicedGradients::Place{.owner = lane.owner(),
                             .scattered = lane.owners.size() == lane.all.size(),
                             .keep = options_.shard == Shard::state ? SlicedGradients::Keep::row
                                                                    : SlicedGradients::Keep::slice,
                             .may_wait = options_.shard != Shard::parameters},
      layout_, *shards_, lane.parameters, world_.time_limit);
}

void SlicesUpdater::give_units(int local) {
  Lane& lane = lanes_[static_cast<size_t>(local)];
  lane.rounds = split_of_owners(local, 0);
  lane.units =
      std::make_unique<ParameterUnits>(lane.rounds, *shards_, lane.row(), world_.time_limit);
}

void SlicesUpdater::start_states(Lane& lane) const {
  for (int state = 0; state < rule_.num_states(); ++state) {
    lane.states.push_back(Array::zeros(DType::uint8, {shards_->slice_bytes(lane.owner())}));
    if (rule_.state_start(state) == 0) continue;
    for (int bucket = 0; bucket < shards_->num_buckets(); ++bucket)
      for (const auto& [stretch, row_bytes, slice_bytes] :
           shards_->part(bucket, lane.owner()).pieces)
        fill(shards_->bucket(bucket).dtype,
             static_cast<std::byte*>(lane.states.back().data()) + slice_bytes,
             stretch.end - stretch.begin, rule_.state_start(state));
  }
}

void SlicesUpdater::gather_state(const Lane& lane, int state,
                                 std::span<const at::Tensor> whole) const {
  auto* const slice = static_cast<std::byte*>(lane.states[static_cast<size_t>(state)].data());
  Group owners = lane.owners;
  for (int number = 0; number < shards_->num_buckets(); ++number) {
    const Bucket& bucket = shards_->bucket(number);
    const OwnedPart& own = shards_->part(number, lane.owner());
    const Array row = Array::zeros(bucket.dtype, {bucket.num_elements});
    owners
        .all_gather({slice + own.slice_bytes, own.num_elements, bucket.dtype}, row.span(),
                    shards_->counts(number), world_.time_limit)
        .wait(world_.time_limit);
    if (whole.empty()) continue;
    for (const int parameter : bucket.parameters) {
      const at::Tensor& to = whole[static_cast<size_t>(parameter)];
      std::memcpy(to.data_ptr(),
                  static_cast<std::byte*>(row.data()) + shards_->row_bytes_of(parameter) -
                      bucket.begin_bytes,
                  to.nbytes());
    }
  }
}

// A worker needs the whole once, whatever number of replicas it has.
UpdaterState SlicesUpdater::state() const {
  require_whole();
  UpdaterState state{std::string(rule_.name()), version(), learning_rate()};
  for (int k = 0; k < rule_.num_states(); ++k) {
    std::vector<at::Tensor> whole;
    for (const ParameterSlot& slot : layout_.slots) {
      whole.push_back(at::full(slot.shape, rule_.state_start(k), scalar_type_of(slot.dtype)));
      if (slot.trained)
        state.tensors.emplace_back(state_tensor_name(rule_.state_name(k), slot.name), whole.back());
    }
    for_each_local(world_, [&](int local) {
      gather_state(lanes_[static_cast<size_t>(local)], k,
                   local == 0 ? std::span<const at::Tensor>(whole) : std::span<const at::Tensor>());
    });
  }
  state.tensors.emplace_back(kScalarsName, tensor_of_scalars(lanes_[0].scalars));
  return state;
}

void SlicesUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  NamedTensors expected;
  for (int k = 0; k < rule_.num_states(); ++k)
    for (const ParameterSlot& slot : layout_.slots)
      if (slot.trained)
        expected.emplace_back(
            state_tensor_name(rule_.state_name(k), slot.name),
            at::empty(slot.shape,
                      at::TensorOptions().dtype(scalar_type_of(slot.dtype)).device(at::kMeta)));
  const auto scalars = scalars_of(state, rule_.name(), layout_, parameters, expected);
  const at::NoGradGuard no_grad;
  for (Lane& lane : lanes_) {
    for (size_t i = 0; i < parameters.size(); ++i)
      lane.parameters[i].detach().copy_(parameters[i].second);
    lane.scalars = scalars;
    if (lane.units) lane.units->take_slice();
    lane.version = state.version;
    lane.torn = false;
  }
  for (int k = 0; k < rule_.num_states(); ++k)
    for (size_t parameter = 0; parameter < layout_.slots.size(); ++parameter) {
      const ParameterSlot& slot = layout_.slots[parameter];
      if (!slot.trained) continue;
      const at::Tensor whole =
          tensor_named(state, state_tensor_name(rule_.state_name(k), slot.name)).contiguous();
      for (Lane& lane : lanes_) take_state(lane, static_cast<size_t>(k), parameter, whole);
    }
  version_ = state.version;
  learning_rate_ = state.learning_rate;
}

void SlicesUpdater::take_state(Lane& lane, size_t state, size_t parameter,
                               const at::Tensor& whole) const {
  const auto number = static_cast<int>(parameter);
  for (const auto& [stretch, row_bytes, slice_bytes] :
       shards_->part(shards_->bucket_of(number), lane.owner()).pieces) {
    if (stretch.parameter != number) continue;
    const int64_t width = size_of(layout_.slots[parameter].dtype);
    std::memcpy(static_cast<std::byte*>(lane.states[state].data()) + slice_bytes,
                static_cast<const std::byte*>(whole.data_ptr()) + stretch.begin * width,
                static_cast<size_t>((stretch.end - stretch.begin) * width));
  }
}

void SlicesUpdater::rebind(const World&, std::vector<NamedTensors>) {
  throw UsageError(
      fmt::format("a world whose replicas own slices (--shard {}) cannot be resized while it runs; "
                  "go on from a "
                  "checkpoint with another number of replicas",
                  name_of(options_.shard)));
}

}  // namespace tutti::detail
