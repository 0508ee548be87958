/// The fused step's updater: its parts and state. Shared by shared_storage.cpp (where everything
/// lies, and whose it is), shared_updater.cpp (a step), hidden_updates.cpp (what
/// of it is done before and behind it); not for users.
#pragma once

#include <torch/nn/module.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/detail/gradient_listener.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/step_plan.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/gradient_meter.h"
#include "tutti/sync/shared/detail/host_sums.h"
#include "tutti/sync/tensors.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

class SharedUpdater final : public Updater,
                            public GradientMeter,
                            public MovableSlices,
                            public LateParameters {
 public:
  SharedUpdater(const World& world, const optim::Recipe& recipe, std::vector<NamedTensors> replicas)
      : rule_(recipe.rule()), layout_(Slots::of(slots_of(replicas.at(0)))), plan_(recipe, layout_) {
    parts_ = {.slices = this, .meter = this};
    world_ = world;
    join_host();
    place_values();
    place_gradients();
    header_->learning_rate = rule_.learning_rate();
    if (world_.first_rank == 0) take_values(replicas[0]);
    bind(std::move(replicas));
  }
  ~SharedUpdater() override {
    for (Lane& lane : lanes_)
      if (lane.sums) lane.sums->stop();
  }

  void ready(int replica, const Deadline& deadline) override;
  GradientListener* begin(int replica, Overlap overlap) override;
  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override;

  UpdaterView view(int replica) const override {
    const int64_t late = late_version_.load();
    return {lanes_.at(replica).parameters, layout_, late != 0 ? late : ended(),
            next_learning_rate_};
  }
  void set_learning_rate(double learning_rate) override {
    rule_.next({}, learning_rate);  // throws what the step would, before anything is written
    next_learning_rate_ = learning_rate;
  }

  void require_whole() const override {
    std::string cause;
    try {
      if (late_version_.load() != 0) return late_->require_all();
    } catch (const Error& error) {
      cause = fmt::format("\n  {}", error.what());
    }
    if (!cause.empty() || header_->begun.load() != header_->ended.load())
      throw Error(
          fmt::format("the parameters are torn: update {} was cut off by a lost replica and "
                      "left old and new values mixed; go on from the last checkpoint{}",
                      header_->begun.load(), cause));
  }

  // Every replica reads the part that it owns of all others' gradients.
  int64_t wire_bytes_per_step() const override {
    return (world_.size - 1) * layout_.trained_bytes() / world_.size;
  }

  void complete() override;
  void refresh() override { complete(); }
  void rethrow_failure() const override;

  void begin_measuring() override;
  const GradientSquares& last_squares() const override { return squares_; }

  UpdaterState state() const override;
  void restore(const UpdaterState& state, const NamedTensors& parameters) override;

  void rebind(const World& world, std::vector<NamedTensors> replicas) override {
    require_resizable(world_, world);
    complete();
    require_whole();
    std::vector<optim::StepScalars> scalars = lanes_[0].scalars;
    world_ = world;
    join_host();
    place_gradients();
    bind(std::move(replicas));
    for (Lane& lane : lanes_) lane.scalars = scalars;
  }

  void share_out(const std::vector<double>& shares) override;

 private:
  // Elements summed into scratch at once: gradients, parameter and two states of a chunk stay in
  // L2, and the calls per chunk do not show. A multiple of kBlockElements.
  static constexpr int64_t kChunkElements = 4 * kBlockElements;

  // Lies in shared memory. Invariant: parameters and states are whole when begun == ended.
  struct alignas(64) Header {
    std::atomic<int64_t> begun;  // version whose update has begun to write
    std::atomic<int64_t> ended;  // version whose update all owners have finished
    std::atomic<double> learning_rate;
  };

  // One replica's gradients of the current step, as its peers see them.
  struct alignas(64) Gradients {
    uint8_t* used = nullptr;  // one byte a parameter, and VoteWords
    // Copied gradients, by the layout's offsets; null: peers read them where autograd left them.
    std::byte* base = nullptr;
    std::vector<const void*> pointers;  // there
    // By parameter: the step of which it is there, and that of which all are that come.
    std::atomic<int64_t>* ready = nullptr;
    // By parameter: the step whose update it has written, of what it owns of that.
    std::atomic<int64_t>* written = nullptr;
    std::atomic<int64_t>* rests = nullptr;  // whether its next step may leave sums behind
  };

  // Hands on what comes before the end of a backward pass.
  struct Early final : GradientListener {
    SharedUpdater* updater = nullptr;
    int replica = 0;
    bool take(const at::Tensor& parameter, const at::Tensor& gradient) override {
      return updater->take_early(replica, parameter, gradient);
    }
    void go_on() override { updater->update_what_is_ready(updater->lanes_[replica]); }
  };

  // What a local replica keeps for itself.
  struct Lane {
    int rank = 0;  // among the replicas of this host
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor>
        keep;  // gradients, or contiguous copies, that peers read until the step ends
    std::vector<uint8_t> copied;   // by the hook, as the gradient became ready
    std::vector<uint8_t> summed;   // by parameter: this host's sum is on its way to the others
    bool tells = false;            // others of this host learn of gradients as they become ready
    std::vector<uint8_t> taken;    // by parameter: before the end of this step's backward pass
    std::vector<uint8_t> updated;  // by stretch: the same
    // By parameter: parts whose sums were still on their way when the step returned, and are.
    std::unique_ptr<std::atomic<int>[]> unwritten;
    std::map<std::pair<int, int64_t>, std::vector<std::byte>> hidden;  // poisoned parts' values
    std::vector<uint8_t> unread;  // by parameter: by no operator before this backward pass
    std::thread::id thread;       // that makes its steps
    int64_t step = 0;             // that have ended, of this world: equal on all replicas
    std::unordered_map<const at::TensorImpl*, int> places;  // of the parameters
    Early early;
    std::vector<optim::StepScalars> scalars;
    std::vector<Stretch> stretches;
    std::vector<Stretch> owned;  // by parameter: what of it this replica updates; may be empty
    std::vector<const void*> inputs;
    std::vector<uint8_t> used;  // as Gradients::used, by any replica of the world
    double learning_rate = 0;   // of this step; rank 0's
    Array scratch;
    Array own_sums;         // of its stretches, where all must be there before the first is updated
    int64_t own_begin = 0;  // byte of the layout at which own_sums begins
    std::vector<double> gradient_scales;  // by parameter
    HostView view;                        // whom it meets: alone, where replicas take turns
    std::optional<HostSums> sums;         // of several hosts
    ReadyHooks hooks;
    bool armed = false;
    bool pushed = false;
    bool host_rests = false;   // some replica of this host may leave sums behind this step
    int updates_measured = 0;  // by this step, the same on all replicas; 0: it measures none
  };

  void join_host();
  SharedParts memory_here(int64_t of_first, int64_t of_each);
  void place_values();
  void place_gradients();
  bool several_hosts() const { return !lanes_[0].view.rails.empty(); }
  void take_values(const NamedTensors& values);
  void share_values();
  NamedTensors named_states() const;
  void meet_here();
  void start_states(const Lane& lane);
  void bind(std::vector<NamedTensors> replicas);
  int64_t ended() const { return header_->ended.load(std::memory_order_acquire); }
  GradientListener* listener(int replica);
  /// The halves of a step: until all have handed in, and from there, for those on its thread.
  void hand_in(int replica, std::span<const at::Tensor> gradients, const Vote& vote);
  Verdict update_all(int replica, const Deadline& deadline);
  void publish(int replica, int parameter, const at::Tensor& gradient);
  void copy_gradient(int replica, int parameter, const at::Tensor& gradient);
  /// Parameters stay as they are.
  Verdict agree(Lane& lane);
  void update(Lane& lane);
  bool take_early(int replica, const at::Tensor& parameter, const at::Tensor& gradient);
  void update_what_is_ready(Lane& lane);
  void tell(int replica, int parameter);
  void add_what_is_ready(Lane& lane);
  void update_while_waiting(Lane& lane);
  bool can_be_late() const;
  void update_by_pieces(Lane& lane);
  void poison_late(Lane& lane);
  std::span<std::byte> values_of(const Stretch& stretch) const;
  void write(Lane& lane, const Stretch& stretch, int64_t step);
  bool rests_here() const;
  bool is_written(int parameter) const;
  [[noreturn]] void throw_not_written(int parameter) const;
  void await_written(int parameter);
  void expect_late(int64_t version);
  void watch_late(int replica);
  void note_unread(Lane& lane);
  bool is_ready(int parameter, int64_t step) const;
  void apply_stretch(Lane& lane, const Stretch& stretch, const optim::StepScalars& scalars);
  bool rule_adds(const Lane& lane, int parameter) const;
  const void* chunk_gradient(Lane& lane, const Stretch& chunk);
  void make_sums(Lane& lane, std::span<const Stretch> stretches);
  void measure(Lane& lane, std::span<const Stretch> stretches);
  /// The other replicas of the host have written what this one is to read.
  void meet(Lane& lane) { lane.view.inside.barrier(limit_here(world_.time_limit)); }
  /// Of waits for replicas of this host: they may wait for another host, and name who it is.
  Millis limit_here(Millis limit) const {
    return limit + (several_hosts() ? Millis{1'000} : Millis{0});
  }
  std::byte* sum_at(const Lane& lane, const Stretch& stretch) const;
  std::array<void*, optim::kMostStates> states_at(int64_t offset) const;
  std::span<void* const> used_states(const std::array<void*, optim::kMostStates>& all) const {
    return {all.data(), static_cast<size_t>(rule_.num_states())};
  }
  bool add_gradients(Lane& lane, const Stretch& chunk, void* sum);
  void place_squares();
  void measure_parts(const Lane& lane, const Stretch& stretch, const void* sum);
  void measure_sums(const Lane& lane);
  void add_squares(Lane& lane);
  void add_for_host(Lane& lane, int parameter);
  void assign_pieces(Lane& lane);
  void take_slice(int local);
  void make_room_for_sums(Lane& lane);
  const std::byte* gradient_at(const Lane& lane, int rank, int parameter, int64_t begin) const;
  void finish_lane(Lane& lane);

  // Byte `offset` of the optimizer's state number `state`.
  std::byte* state_at(int state, int64_t offset) const {
    return values_ + (state + 1) * layout_.total_bytes + offset;
  }

  optim::Rule rule_;  // without groups: what states there are
  Slots layout_;
  StepPlan plan_;
  World world_;
  ReductionShape shape_here_ = ReductionShape::flat(1);  // of the replicas of this host
  Header* header_ = nullptr;
  std::byte* values_ = nullptr;  // parameters, then each state, all by the layout's offsets
  std::shared_ptr<const void> owner_, gradients_owner_;
  std::vector<Gradients> gradients_;  // of all replicas of this host
  // Where the plan needs norms: sums of squares of every block, by its owner, for all of the host.
  std::span<double> gradient_squares_;
  std::span<optim::Squares> measured_;
  // Where gradients are measured: squares of each block of those of each replica of this host, then
  // of their sum; of one replica nothing. Empty: they are not.
  bool measuring_ = false;
  std::vector<std::span<double>> block_squares_;
  std::shared_ptr<const void> squares_owner_;
  GradientSquares squares_;  // of the last step; local replica 0's
  std::atomic<double> next_learning_rate_{rule_.learning_rate()};
  // Where the update of a step may be written behind it: parameters until then, by place.
  std::unique_ptr<BeforeUse> late_;
  std::atomic<int64_t> late_version_{0};  // that is written so; 0: none
  std::atomic<bool> late_stands_{false};  // all of this host have made it
  int64_t late_step_ = 0;                 // Lane::step of it
  std::vector<Lane> lanes_;               // of local replicas; their threads use all that is above
};

}  // namespace tutti::detail
