/// The updater whose ranks own slices: its parts and state. Shared by sharded_updater.cpp (a step)
/// and sharded_state.cpp (where values and state lie, for checkpoints); not for users.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/sync/detail/step_plan.h"
#include "tutti/sync/sharded/detail/parameter_units.h"
#include "tutti/sync/sharded/detail/shard_layout.h"
#include "tutti/sync/sharded/detail/sliced_gradients.h"
#include "tutti/sync/sharded/sharded_updater.h"

namespace tutti::detail {

class SlicesUpdater final : public ShardedUpdater, public Gathers {
 public:
  SlicesUpdater(const World& world, const optim::Recipe& recipe, std::vector<NamedTensors> replicas,
                const ShardedOptions& options);

  void ready(int replica, const Deadline& deadline) override;
  GradientListener* begin(int replica, Overlap overlap) override;
  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override;
  void meet(int replica, Until until) override;
  void fail(int replica, const std::string& reason) noexcept override;
  void rethrow_failure() const override {
    for (const Lane& lane : lanes_)
      if (lane.units) lane.units->rethrow_failure();
  }

  UpdaterView view(int replica) const override {
    return {lanes_.at(static_cast<size_t>(replica)).parameters, layout_, version_, learning_rate_};
  }
  void set_learning_rate(double learning_rate) override {
    rule_.next({}, learning_rate);  // throws what the step would
    learning_rate_ = learning_rate;
  }
  void require_whole() const override;
  int64_t wire_bytes_per_step() const override;
  ShardBytes bytes(int replica) const override;

  UpdaterState state() const override;
  void restore(const UpdaterState& state, const NamedTensors& parameters) override;
  void rebind(const World& world, std::vector<NamedTensors> replicas) override;

 private:
  struct Lane {
    Group all;     // whose gradients are added
    Group owners;  // who have the slices
    std::vector<at::Tensor> parameters;
    Array values;                           // a row: of trained parameters
    std::vector<Array> states;              // slices, one a state
    std::unique_ptr<ParameterUnits> units;  // Shard::parameters
    Group rounds;                           // theirs
    std::optional<SlicedGradients> gradients;
    std::vector<optim::StepScalars> scalars;
    std::vector<double> squares;           // of every block, where norms are clipped
    std::vector<optim::Squares> measured;  // the same, for rules that measure
    double learning_rate = 0;              // of the step
    Work learning_rate_work;
    int64_t frozen_bytes = 0;
    int64_t version = 0;  // updates of this lane
    bool torn = false;    // an update has begun, and not ended

    int owner() const { return owners.rank(); }
    std::byte* row() const { return static_cast<std::byte*>(values.data()); }
    /// Where the owner updates a piece.
    std::byte* value_of(const OwnedPiece& piece) const {
      return units ? units->value_of(piece) : row() + piece.row_bytes;
    }
  };

  void join_owners();
  Group split_of_owners(int local, int color);
  void give_units(int local);
  void bind(Lane& lane, NamedTensors replica);
  void start_states(Lane& lane) const;
  void clip(Lane& lane);
  void measure(Lane& lane);
  void update_and_gather(Lane& lane);
  void require_not_torn(const Lane& lane) const;
  void update(Lane& lane, const OwnedPiece& piece);
  std::vector<void*> states_of(const Lane& lane, const OwnedPiece& piece) const;
  /// Calls visit(piece, dtype, sum, num_elements) for each of the lane's pieces that was used.
  template <class Visit>
  void for_each_used(const Lane& lane, const Visit& visit) const;
  /// Collective over the lane's owners: puts a state into `whole`, one tensor a parameter; empty:
  /// the others alone need it.
  void gather_state(const Lane& lane, int state, std::span<const at::Tensor> whole) const;
  /// Takes this lane's part of one parameter's state.
  void take_state(Lane& lane, size_t state, size_t parameter, const at::Tensor& whole) const;

  optim::Rule rule_;  // without groups: what states there are
  ShardedOptions options_;
  Slots layout_;
  StepPlan plan_;
  World world_;
  std::optional<ShardLayout> shards_;
  std::vector<Lane> lanes_;  // of local replicas
  std::atomic<double> learning_rate_{0};
  std::atomic<int64_t> version_{0};
};

}  // namespace tutti::detail
