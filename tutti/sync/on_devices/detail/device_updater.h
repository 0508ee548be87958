/// The fused step on devices: its parts and state. Shared by device_storage.cpp (where everything
/// lies, and whose it is), device_updater.cpp (a step), device_world.cpp (what of it goes to other
/// processes) and device_rebind.cpp (how it goes on in another world); not for users.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/runs.h"
#include "tutti/sync/detail/step_plan.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/on_devices/detail/device_buckets.h"
#include "tutti/sync/on_devices/detail/device_loss_scale.h"
#include "tutti/sync/on_devices/detail/device_progress.h"
#include "tutti/sync/on_devices/detail/device_rule.h"
#include "tutti/sync/on_devices/detail/exact_sums.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

class DeviceUpdater final : public Updater, public DeviceDecisions, public StepCapture {
 public:
  DeviceUpdater(const World& world, const optim::Recipe& recipe, std::vector<NamedTensors> replicas,
                const DeviceSums& sums);

  void ready(int replica, const Deadline& deadline) override;
  GradientListener* begin(int replica, Overlap overlap) override;
  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override;
  /// The first half of a step: until the hosts have met.
  void hand_in(int replica, std::span<const at::Tensor> gradients, const Vote& vote);

  int64_t forget_left_out() override;

  void scale_losses(const optim::LossScale& scale) override;
  DeviceLossScale* scale_of(int replica) const override { return lanes_.at(replica).scale.get(); }

  void begin_captures() override;
  void before_step(int replica) override;
  void captured(int replica) override;
  void replayed(int replica) override;

  UpdaterView view(int replica) const override {
    return {lanes_.at(replica).parameters, layout_, ended(), next_learning_rate_};
  }
  void set_learning_rate(double learning_rate) override {
    rule_.next({}, learning_rate);  // throws what the step would, before anything is queued
    next_learning_rate_ = learning_rate;
  }
  void require_whole() const override;

  int64_t wire_bytes_per_step() const override;

  UpdaterState state() const override;
  void restore(const UpdaterState& state, const NamedTensors& parameters) override;
  void rebind(const World& world, std::vector<NamedTensors> replicas) override;

 private:
  /// What one replica updates, on its device.
  struct Owned {
    std::vector<Stretch> stretches;
    std::vector<Run> runs;
    int64_t begin = 0;                 ///< byte of the layout at which the first run begins
    int64_t bytes = 0;                 ///< from there on, whole lines
    at::Tensor states;                 ///< [states, bytes]
    at::Tensor scratch;                ///< [local, bytes]: peers' gradients and partial sums
    std::unique_ptr<ExactSums> exact;  ///< over processes, where sums follow the shape
    std::vector<at::Tensor> sums;     ///< by stretch; views of scratch[0], or of the only gradients
    at::Tensor squares;               ///< float64, by stretch, where norms are clipped
    at::Tensor all_squares;           ///< of the stretches of all owners, and a zero
    at::Tensor steps;                 ///< float32, by stretch: updates that were made
    at::Tensor flags;                 ///< [local replicas, 2]: Lane::flags
    at::Tensor left_out;              ///< the largest of each
    at::Tensor missed;                ///< float32: updates that were queued and left out
    std::vector<DeviceSlices> parts;  ///< by group of the recipe
    std::vector<std::vector<int>> places;  ///< of those in `stretches`, by group
    std::vector<at::Tensor> rates;         ///< by group, where steps are captured: float32
    std::vector<double> rates_there;       ///< what the host has sent
    at::Tensor squares_of;                 ///< [most, parameters]: places in `all_squares`
  };

  /// What a local replica keeps for itself.
  struct Lane {
    std::vector<at::Tensor> parameters;
    at::Tensor values;              ///< bytes by the layout; one tensor where all share it
    at::Tensor gradients;           ///< the same; none for a replica alone that does not clip
    std::vector<at::Tensor> views;  ///< of gradients, by parameter
    std::vector<at::Tensor> keep;   ///< gradients where autograd left them, of this step
    std::vector<uint8_t> used;      ///< by parameter; then: VoteWords, and flagged
    std::vector<uint8_t> any;       ///< the same, of all replicas
    /// What all processes have told: the same; rank 0's learning rate; passes done, by rank.
    std::vector<uint8_t> told;
    double rate = 0;                ///< of this step; rank 0's
    PassesDone passes;              ///< where there are other processes
    std::vector<uint8_t> captured;  ///< `used` of the step that was captured
    std::vector<uint8_t> blank;     ///< by parameter: `gradients` has -0.0 there
    std::vector<optim::StepScalars> scalars;
    at::Tensor flags;  ///< float32, not 0: leave this step and all later ones out; this alone
    std::unique_ptr<DeviceLossScale> scale;  ///< null: losses are not scaled
    bool pushed = false;
    bool has_run = true;  ///< the last update on the device, or it is known that it may not
    DeviceMark ready, measured, updated;
  };

  bool alone() const noexcept { return world_.size == 1 && !clips_; }
  /// Gradients are added where they lie: no other replica of this process has any.
  bool adds_in_place() const noexcept { return world_.local == 1; }
  bool across() const noexcept { return world_.processes() > 1; }
  bool exact() const noexcept { return across() && sums_.order == Order::fixed; }
  const DeviceQueue& queue(int replica) const {
    return world_.queues[static_cast<size_t>(replica)];
  }
  /// The parameter whose rule and rate are those of the group; there is one.
  static int first_of(const Owned& owned, size_t group) {
    return owned.stretches[static_cast<size_t>(owned.places[group][0])].parameter;
  }
  at::Device device(int replica) const { return queue(replica).device(); }

  // ---- device_storage.cpp ----
  void bind(std::vector<NamedTensors> replicas);
  void make_lane(int replica, NamedTensors parameters);
  void make_owned(int replica, std::span<const std::vector<Stretch>> pieces);
  void make_parts(int replica);
  void make_rates();
  void find_squares();
  at::Tensor& values_of(int replica) { return lanes_[static_cast<size_t>(replica)].values; }
  at::Tensor sum_of(int owner, const Run& run);
  at::Tensor state_at(const Owned& owned, int state, const Stretch& stretch) const;
  at::Tensor slot_of(const at::Tensor& bytes, size_t parameter) const;
  at::Tensor flat(const at::Tensor& tensor, size_t parameter) const;
  void take_values(const NamedTensors& values);
  at::Tensor shaped(const at::Tensor& elements, size_t parameter) const;
  at::Tensor whole_state(int state, size_t parameter) const;
  NamedTensors whole_states() const;
  std::vector<optim::StepScalars> scalars_of_steps() const;
  void drain(const std::string& what) const;

  // ---- device_world.cpp ----
  void bind_to_processes();
  std::unique_ptr<ExactSums> exact_sums(int replica, std::span<const std::vector<Stretch>> pieces);
  void gradient_ready(int parameter);
  void put_the_rest();
  void tell(int replica);
  void add_over_processes(int owner);
  void flag_over_processes(int owner);
  void ask_hosts_who(int replica);
  template <class Body>
  auto guarded(int replica, Body body);
  Group& device_group(int replica) { return world_.device_groups[static_cast<size_t>(replica)]; }

  // ---- device_rebind.cpp ----
  void leave_processes();
  void look_at_last_update(int replica);
  void agree_on_version();

  // ---- device_updater.cpp ----
  int64_t ended() const { return ended_.load(std::memory_order_acquire); }
  void leave_out_if(Lane& lane, const at::Tensor& bad);
  void take_all(int replica, std::span<const at::Tensor> gradients, const Vote& vote);
  Verdict update_all(int replica);
  void update_owned(int replica);
  void take_gradient(Lane& lane, size_t parameter, const at::Tensor& gradient);
  void leave_blank(Lane& lane, size_t parameter);
  void meet(int replica);
  void after_others(int replica, DeviceMark Lane::* mark, const char* wait) const;
  Verdict agree(Lane& lane);
  void add_up(int owner);
  void add_up(int owner, const Run& run);
  void measure(int owner);
  void scale(int owner);
  std::optional<at::Tensor> gather_flags(int owner, const Lane& lane);
  void update(int owner, const Lane& lane);
  void take_others(int replica);
  void finish_lane(Lane& lane);

  optim::Recipe recipe_;
  optim::Rule rule_;  // without groups: what states there are
  Slots layout_;
  std::vector<at::MemoryFormat> formats_;  // by parameter: how its elements lie in its slot
  StepPlan plan_;
  bool clips_;
  World world_;
  DeviceSums sums_;
  bool shares_values_ = false;  // all replicas are on one device
  bool captures_ = false;       // steps may be captured: the host's part comes in before_step()
  std::vector<Lane> lanes_;
  std::vector<Owned> owned_;                  // by replica
  std::shared_ptr<DeviceProgress> progress_;  // of the ranks of all processes
  std::unique_ptr<DeviceBuckets> buckets_;    // where this process has one replica; null: none
  bool listens_ = false;                      // to gradients as they become ready
  std::exception_ptr lost_in_backward_;       // a peer; the world has failed
  uint8_t nobody_sends_ = 0;
  std::atomic<int64_t> begun_{0}, ended_{0};
  std::atomic<bool> cut_off_{false};  // the last update may have used sums that were not whole
  double step_rate_ = 0;              // of this step; this process's
  std::atomic<double> next_learning_rate_;
  ReadyHooks hooks_;  // ends before what it calls
};

}  // namespace tutti::detail
