// The fused step. All replicas of a host share one parameter storage; the owner of a slice reads
// the slice of n gradients, adds them in the one order, and updates parameter and optimizer state
// once.
//
// Glossary: n replicas, S bytes of parameters. Piece: elements of one parameter owned by one
// replica. A step: push (gradients published) | barrier | each owner updates its pieces | barrier.
// Bytes with Adam: nS read for gradients + 6S for p, m, v, instead of 2nS + n 7S (all-reduce +
// step). The owner-updates-once idea is ZeRO's (Rajbhandari et al. 2020, arXiv:1910.02054) with the
// all-gather removed by sharing the storage. Over several hosts the owners of a piece first add the
// sums of their hosts (host_sums.h). docs/design/fused_step.md.

#include <torch/nn/module.h>

#include <atomic>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/comm/reduce_kernels.h"
#include "tutti/sync/gradients.h"
#include "tutti/sync/host_sums.h"
#include "tutti/sync/tensors.h"
#include "tutti/sync/updater.h"

namespace tutti {
namespace {

// Elements summed into scratch at once: gradients, parameter and two states of a chunk stay in L2,
// and the calls per chunk do not show. A multiple of kBlockElements.
constexpr int64_t kChunkElements = 4 * kBlockElements;

// Lies in shared memory. Invariant: parameters and states are whole when begun == ended.
struct alignas(64) Header {
  std::atomic<int64_t> begun;  // version whose update has begun to write
  std::atomic<int64_t> ended;  // version whose update all owners have finished
  std::atomic<double> learning_rate;
};

// One replica's gradients of the current step, as its peers see them.
struct alignas(64) Gradients {
  uint8_t* used = nullptr;    // one byte a parameter
  std::byte* base = nullptr;  // copied gradients, by the layout's offsets (several processes)
  std::vector<const void*> pointers;  // where autograd left them (one process)
};

// What a local replica keeps for itself.
struct Lane {
  int rank = 0;  // among the replicas of this host
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor>
      keep;  // gradients, or contiguous copies, that peers read until the step ends
  std::vector<uint8_t> copied;  // by the hook, as the gradient became ready
  std::vector<optim::StepScalars> scalars;
  std::vector<Piece> pieces;
  std::vector<Piece> owned;  // by parameter: what of it this replica updates; may be empty
  std::vector<const void*> inputs;
  std::vector<uint8_t> used;  // one byte a parameter: by any replica of the world
  Array scratch;
  std::optional<HostView> view;          // of several processes
  std::optional<detail::HostSums> sums;  // of several hosts
  detail::ReadyHooks hooks;
  bool armed = false;
  bool pushed = false;
};

Array aligned_bytes(int64_t bytes) { return Array::zeros(DType::uint8, {bytes}); }

class SharedUpdater final : public Updater {
 public:
  SharedUpdater(const World& world, const optim::Rule& rule, std::vector<NamedTensors> replicas)
      : rule_(rule), layout_(Layout::of(detail::slots_of(replicas.at(0)))) {
    for (const auto& slot : layout_.slots)
      if (slot.trained && slot.dtype != DType::float32 && slot.dtype != DType::float64)
        throw UsageError(
            fmt::format("parameter \"{}\" is {}: the fused step updates float32 and float64; use a "
                        "torch optimizer",
                        slot.name, name_of(slot.dtype)));
    world_ = world;
    place_storage();
    header_->learning_rate = rule.learning_rate();
    if (world_.first_rank == 0) take_values(replicas[0]);
    bind(std::move(replicas));
  }

  void begin(int replica) override {
    Lane& lane = lanes_.at(replica);
    if (world_.in_turn() && replica == 0) forget_unfinished_step();
    detail::require_cleared(layout_, lane.parameters);
    std::fill(lane.copied.begin(), lane.copied.end(), 0);
    lane.armed = true;
  }

  int64_t push(int replica, std::span<const at::Tensor> gradients, double weight) override;
  void acquire(int replica, int64_t at_least, const Deadline& deadline) override;

  int64_t version() const override { return header_->ended.load(std::memory_order_acquire); }
  void set_learning_rate(double learning_rate) override {
    optim::require_learning_rate(learning_rate);
    next_learning_rate_ = learning_rate;
  }
  double learning_rate() const override { return next_learning_rate_; }

  void require_whole() const override {
    if (header_->begun.load() != header_->ended.load())
      throw Error(
          fmt::format("the parameters are torn: update {} was cut off by a lost replica and "
                      "left old and new values mixed; go on from the last checkpoint",
                      header_->begun.load()));
  }

  // Every replica reads the part that it owns of all others' gradients.
  int64_t wire_bytes_per_step() const override {
    return (world_.size - 1) * layout_.trained_bytes() / world_.size;
  }

  const std::vector<at::Tensor>& parameters(int replica) const override {
    return lanes_.at(replica).parameters;
  }
  const Layout& layout() const override { return layout_; }

  void rebind(const World& world, std::vector<NamedTensors> replicas) override {
    if (!world.one_process() || !world_.one_process())
      throw UsageError("a world of several workers cannot be resized while it runs");
    require_whole();
    std::vector<optim::StepScalars> scalars = lanes_[0].scalars;
    world_ = world;
    bind(std::move(replicas));
    for (Lane& lane : lanes_) lane.scalars = scalars;
  }

 private:
  void place_storage();
  void take_values(const NamedTensors& values);
  void share_values();
  void start_states(const Lane& lane);
  void bind(std::vector<NamedTensors> replicas);
  void copy_gradient(int replica, int parameter, const at::Tensor& gradient);
  void apply(Lane& lane, std::span<const Piece> pieces);
  void apply_piece(Lane& lane, const Piece& piece);
  bool add_gradients(Lane& lane, const Piece& chunk, void* sum);
  void add_for_host(Lane& lane, const Piece& piece);
  void assign_pieces(Lane& lane);
  const std::byte* gradient_at(const Lane& lane, int rank, int parameter, int64_t begin) const;
  void finish_lane(Lane& lane);
  void update_in_turn();
  void forget_unfinished_step();

  /// The replicas that share the storage.
  Group& here(int replica) {
    Lane& lane = lanes_[replica];
    return lane.view ? lane.view->inside : world_.groups[replica];
  }

  // Byte `offset` of the optimizer's state number `state`.
  std::byte* state_at(int state, int64_t offset) const {
    return values_ + (state + 1) * layout_.total_bytes + offset;
  }

  optim::Rule rule_;
  Layout layout_;
  World world_;
  ReductionShape shape_here_ = ReductionShape::flat(1);  // of the replicas of this host
  Header* header_ = nullptr;
  std::byte* values_ = nullptr;  // parameters, then each state, all by the layout's offsets
  std::shared_ptr<const void> owner_;
  std::vector<Gradients> gradients_;  // of all replicas of this host
  std::vector<Lane> lanes_;           // of local replicas
  std::vector<Array> own_memory_;
  std::atomic<double> next_learning_rate_{rule_.learning_rate()};
  int pushed_in_turn_ = 0;
};

// One process: plain memory. Several: the part of each host's first replica in a shared arena holds
// header and values, every replica's part its used bytes and its copied gradients.
void SharedUpdater::place_storage() {
  lanes_.resize(world_.local);
  const int64_t header_bytes = sizeof(Header);
  const int64_t values_bytes = (1 + rule_.num_states()) * layout_.total_bytes;
  if (world_.one_process()) {
    Array memory = aligned_bytes(header_bytes + values_bytes);
    header_ = new (memory.data()) Header{};
    values_ = static_cast<std::byte*>(memory.data()) + header_bytes;
    owner_ = memory.owner();
    return;
  }
  const int64_t used_bytes = (static_cast<int64_t>(layout_.slots.size()) + 63) / 64 * 64;
  std::vector<SharedParts> parts(world_.local);
  detail::for_each_local(world_, [&](int local) {
    HostView& view = lanes_[local].view.emplace(host_view(world_.groups[local]));
    const int64_t shared = view.inside.rank() == 0 ? header_bytes + values_bytes : 0;
    parts[local] =
        view.inside.allocate(used_bytes + layout_.total_bytes + shared, world_.time_limit);
  });
  owner_ = parts[0].owner;
  for (const MemorySpan& part : parts[0].parts) {
    Gradients gradients;
    gradients.used = static_cast<uint8_t*>(part.data);
    gradients.base = static_cast<std::byte*>(part.data) + used_bytes;
    gradients_.push_back(std::move(gradients));
  }
  std::byte* shared = gradients_[0].base + layout_.total_bytes;
  header_ = reinterpret_cast<Header*>(shared);  // zeroed memory is a valid Header
  values_ = shared + header_bytes;
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
  detail::for_each_local(world_, [&](int local) {
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
      own_memory_.push_back(aligned_bytes(static_cast<int64_t>(count)));
      gradients.used = static_cast<uint8_t*>(own_memory_.back().data());
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
      parameter.set_data(detail::view_memory(values_ + slot.offset_bytes, slot, owner_));
      lane.parameters.push_back(std::move(parameter));
    }
    lane.keep.resize(count);
    lane.copied.assign(count, 0);
    lane.scalars.resize(count);
    lane.used.resize(count);
    lane.inputs.resize(gradients_.size());
    lane.scratch = Array::zeros(DType::float64, {kChunkElements});
    lane.rank = lane.view ? lane.view->inside.rank() : local;
    assign_pieces(lane);
    if (header_->begun.load() == 0) start_states(lane);
    if (!world_.one_process())
      lane.hooks = detail::ReadyHooks(lane.parameters, [this, local](int parameter) {
        Lane& mine = lanes_[local];
        if (mine.armed) copy_gradient(local, parameter, mine.parameters[parameter].grad());
      });
  }
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
  const auto pieces = layout_.cut(shares);
  if (several_hosts) lane.sums.emplace(*lane.view, layout_, pieces);
  lane.owned.assign(layout_.slots.size(), {});
  for (int slice = first; slice < last; ++slice)
    for (const Piece& piece : pieces[slice]) {
      Piece& owned = lane.owned[piece.parameter];
      const bool goes_on = owned.end != 0;
      owned = {piece.parameter, goes_on ? owned.begin : piece.begin, piece.end};
    }
  for (const Piece& piece : lane.owned)
    if (piece.end > piece.begin) lane.pieces.push_back(piece);
}

// By who owns a piece; memory is zero before.
void SharedUpdater::start_states(const Lane& lane) {
  for (int state = 0; state < rule_.num_states(); ++state) {
    const double start = rule_.state_start(state);
    if (start == 0) continue;
    for (const Piece& piece : lane.pieces) {
      const ParameterSlot& slot = layout_.slots[piece.parameter];
      void* const at = state_at(state, slot.offset_bytes + piece.begin * size_of(slot.dtype));
      const int64_t count = piece.end - piece.begin;
      if (slot.dtype == DType::float64)
        std::fill_n(static_cast<double*>(at), count, start);
      else
        std::fill_n(static_cast<float*>(at), count, static_cast<float>(start));
    }
  }
}

void SharedUpdater::copy_gradient(int replica, int parameter, const at::Tensor& gradient) {
  Lane& lane = lanes_[replica];
  const ParameterSlot& slot = layout_.slots[parameter];
  if (lane.copied[parameter])
    throw UsageError(
        fmt::format("parameter \"{}\" got a second gradient in one step: backward() ran "
                    "twice; add the losses and call minimize() once",
                    slot.name));
  detail::check_gradient(slot, gradient);
  // Peers need what they own; this replica reads its own part where autograd left it.
  lane.keep[parameter] = gradient.contiguous();
  const auto* from = static_cast<const std::byte*>(lane.keep[parameter].data_ptr());
  std::byte* to = gradients_[lane.rank].base + slot.offset_bytes;
  const int64_t width = size_of(slot.dtype);
  const int64_t begin = lane.owned[parameter].begin * width;
  const int64_t end = lane.owned[parameter].end * width;
  std::memcpy(to, from, static_cast<size_t>(begin));
  std::memcpy(to + end, from + end, static_cast<size_t>(slot.num_elements * width - end));
  lane.copied[parameter] = 1;
}

int64_t SharedUpdater::push(int replica, std::span<const at::Tensor> gradients, double weight) {
  Lane& lane = lanes_.at(replica);
  Gradients& mine = gradients_[lane.rank];
  if (lane.pushed)
    throw UsageError(
        fmt::format("replica {} took part twice in one step; call minimize() or "
                    "abstain() once a step on each replica",
                    world_.first_rank + replica));
  require_whole();
  lane.armed = false;
  for (size_t i = 0; i < lane.parameters.size(); ++i) {
    const bool used = weight != 0 && i < gradients.size() && gradients[i].defined();
    mine.used[i] = used;
    if (!used) continue;
    if (!world_.one_process()) {
      if (!lane.copied[i]) copy_gradient(replica, static_cast<int>(i), gradients[i]);
      continue;
    }
    detail::check_gradient(layout_.slots[i], gradients[i]);
    lane.keep[i] = gradients[i].contiguous();
    mine.pointers[i] = lane.keep[i].data_ptr();
  }
  lane.pushed = true;
  if (lane.rank == 0) header_->learning_rate = next_learning_rate_.load();
  const int64_t next = version() + 1;
  if (world_.in_turn()) {
    if (++pushed_in_turn_ == world_.local) update_in_turn();
    return next;
  }
  here(replica).barrier(world_.time_limit);
  return next;
}

void SharedUpdater::acquire(int replica, int64_t at_least, const Deadline& deadline) {
  Lane& lane = lanes_.at(replica);
  if (!lane.pushed || world_.in_turn()) return;
  header_->begun.store(at_least, std::memory_order_release);
  apply(lane, lane.pieces);
  here(replica).barrier(std::min(world_.time_limit, deadline.limit()));
  header_->ended.store(at_least, std::memory_order_release);
  finish_lane(lane);
}

void SharedUpdater::update_in_turn() {
  const int64_t next = version() + 1;
  header_->begun = next;
  apply(lanes_[0], lanes_[0].pieces);
  header_->ended = next;
  for (Lane& lane : lanes_) finish_lane(lane);
  pushed_in_turn_ = 0;
}

// A turn that ended in an exception of the user's leaves replicas that have pushed and ones that
// have not; the next step starts afresh.
void SharedUpdater::forget_unfinished_step() {
  pushed_in_turn_ = 0;
  for (Lane& lane : lanes_) lane.pushed = false;
}

void SharedUpdater::finish_lane(Lane& lane) {
  detail::bump_versions(lane.parameters);
  for (at::Tensor& gradient : lane.keep) gradient.reset();
  lane.pushed = false;
}

// Every replica advances its own copy of all step counts by the same rule, from the used bytes that
// all have published, so that nobody needs another barrier for them.
void SharedUpdater::apply(Lane& lane, std::span<const Piece> pieces) {
  double learning_rate = header_->learning_rate.load();
  for (size_t i = 0; i < lane.used.size(); ++i) {
    lane.used[i] = 0;
    for (const Gradients& gradients : gradients_) lane.used[i] |= gradients.used[i];
  }
  if (lane.sums) {
    for (const Piece& piece : pieces) add_for_host(lane, piece);
    lane.sums->exchange(lane.used, learning_rate, world_.time_limit);
  }
  for (size_t i = 0; i < lane.used.size(); ++i)
    if (lane.used[i] != 0) lane.scalars[i] = rule_.next(lane.scalars[i], learning_rate);
  for (const Piece& piece : pieces)
    if (lane.used[piece.parameter] != 0) apply_piece(lane, piece);
}

// Where element `begin` of a replica's gradient lies; null when it did not use the parameter.
const std::byte* SharedUpdater::gradient_at(const Lane& lane, int rank, int parameter,
                                            int64_t begin) const {
  const Gradients& peer = gradients_[rank];
  if (!peer.used[parameter]) return nullptr;
  const ParameterSlot& slot = layout_.slots[parameter];
  const int64_t bytes = begin * size_of(slot.dtype);
  const bool copied = peer.base != nullptr && rank != lane.rank;
  if (copied) return peer.base + slot.offset_bytes + bytes;
  const void* left =
      peer.base != nullptr ? lane.keep[parameter].data_ptr() : peer.pointers[parameter];
  return static_cast<const std::byte*>(left) + bytes;
}

// The sum over the replicas of this host; false, and nothing written, when none used the parameter.
bool SharedUpdater::add_gradients(Lane& lane, const Piece& chunk, void* sum) {
  bool used = false;
  for (size_t rank = 0; rank < gradients_.size(); ++rank) {
    lane.inputs[rank] = gradient_at(lane, static_cast<int>(rank), chunk.parameter, chunk.begin);
    used |= lane.inputs[rank] != nullptr;
  }
  if (used)
    reduce_inputs(layout_.slots[chunk.parameter].dtype, ReduceOp::sum, shape_here_, lane.inputs,
                  sum, chunk.end - chunk.begin);
  return used;
}

void SharedUpdater::add_for_host(Lane& lane, const Piece& piece) {
  std::byte* const sum = lane.sums->sum_of(piece);
  if (add_gradients(lane, piece, sum)) return;
  // What was left out must not change the others' sum: x + -0.0 is x for every x, 0.0 + x is not.
  const int64_t count = piece.end - piece.begin;
  if (layout_.slots[piece.parameter].dtype == DType::float32)
    std::fill_n(reinterpret_cast<float*>(sum), count, -0.0F);
  else
    std::fill_n(reinterpret_cast<double*>(sum), count, -0.0);
}

void SharedUpdater::apply_piece(Lane& lane, const Piece& piece) {
  const ParameterSlot& slot = layout_.slots[piece.parameter];
  const int64_t width = size_of(slot.dtype);
  for (int64_t begin = piece.begin; begin < piece.end; begin += kChunkElements) {
    const int64_t count = std::min(kChunkElements, piece.end - begin);
    const Piece chunk{piece.parameter, begin, begin + count};
    const int64_t offset = slot.offset_bytes + begin * width;
    const void* gradient = lane.scratch.data();
    if (lane.sums)
      gradient = lane.sums->sum_of(chunk);
    else if (gradients_.size() == 1)
      gradient = gradient_at(lane, 0, piece.parameter, begin);
    else
      add_gradients(lane, chunk, lane.scratch.data());
    void* states[2] = {};
    for (int state = 0; state < rule_.num_states(); ++state)
      states[state] = state_at(state, offset);
    rule_.update(slot.dtype, values_ + offset, gradient,
                 std::span<void* const>(states, static_cast<size_t>(rule_.num_states())), count,
                 lane.scalars[piece.parameter]);
  }
}

}  // namespace

std::shared_ptr<Updater> make_shared_updater(const World& world, const optim::Rule& rule,
                                             std::vector<NamedTensors> replicas) {
  return std::make_shared<SharedUpdater>(world, rule, std::move(replicas));
}

}  // namespace tutti
