// All-reduce, then a step on every replica: for any torch optimizer, and for our own rules as the
// oracle of the fused step.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tutti/base/log.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/replicated/detail/gradient_reducer.h"
#include "tutti/sync/replicated/detail/stepper.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

using detail::Stepper;
using detail::StepperFactory;

struct ReplicaLane {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Stepper> stepper;
  std::unique_ptr<detail::GradientReducer> reducer;  // none when replicas take turns
  std::vector<at::Tensor> keep;                      // gradients of this turn
  // Buckets of replicas that take turns, where a reduction or a compression was chosen.
  Array memory;
  std::unique_ptr<detail::BucketSums> sums;

  detail::BucketSums& bucket_sums() const { return sums ? *sums : reducer->sums(); }
};

bool is_chosen(const ReplicatedOptions& options) {
  return options.reduction || options.compression.on();
}

class ReplicatedUpdater final : public Updater {
 public:
  ReplicatedUpdater(const World& world, StepperFactory factory, std::vector<NamedTensors> replicas,
                    const ReplicatedOptions& options)
      : factory_(std::move(factory)),
        options_(options),
        layout_(Slots::of(detail::slots_of(replicas.at(0)))) {
    check_replicated(options_);
    bind(world, std::move(replicas), {}, {});
    learning_rate_ = lanes_[0].stepper->learning_rate();
    if (is_chosen(options_) && world_.first_rank == 0) say_what_was_chosen();
  }

  void ready(int replica, const Deadline&) override {
    if (reduction_in_turn_ && replica == 0) forget_step();
  }

  detail::GradientListener* begin(int replica, Overlap overlap) override {
    ReplicaLane& lane = lanes_.at(replica);
    detail::require_cleared(layout_, lane.parameters);
    if (!lane.reducer) return nullptr;
    lane.reducer->listen(overlap == Overlap::on);
    return overlap == Overlap::on ? lane.reducer->listener() : nullptr;
  }

  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override {
    ReplicaLane& lane = lanes_.at(replica);
    if (!lane.reducer) return hand_in_in_turn(replica, gradients, vote);
    const int64_t next = version_ + 1;
    lane.reducer->listen(false);
    lane.reducer->finish(gradients, vote);
    const Verdict verdict = lane.reducer->wait();
    double learning_rate = learning_rate_;  // rank 0's counts
    const Millis limit = std::min(world_.time_limit, deadline.limit());
    world_.groups[replica].broadcast({&learning_rate, 1, DType::float64}, 0, limit).wait(limit);
    if (verdict.left_out) return verdict;
    update(lane, learning_rate);
    version_ = next;  // every lane writes the same value
    return verdict;
  }

  UpdaterView view(int replica) const override {
    return {lanes_.at(replica).parameters, layout_, version_, learning_rate_};
  }
  void set_learning_rate(double learning_rate) override {
    optim::require_learning_rate(learning_rate);
    learning_rate_ = learning_rate;
  }
  int64_t wire_bytes_per_step() const override {
    const ReplicaLane& lane = lanes_[0];
    if (lane.reducer) return lane.reducer->wire_bytes();
    if (lane.sums) return lane.sums->wire_bytes();
    return detail::sum_wire_bytes(layout_.trained_bytes(), world_.size);
  }
  void require_whole() const override {}  // each replica has parameters of its own

  UpdaterState state() const override {
    UpdaterState state{lanes_[0].stepper->kind(), version_, learning_rate_,
                       lanes_[0].stepper->state()};
    if (!options_.compression.on()) return state;
    for (const ReplicaLane& lane : lanes_)
      state.replicas.push_back(detail::tensors_of(lane.bucket_sums().state(), layout_));
    return state;
  }

  void restore(const UpdaterState& state, const NamedTensors& parameters) override {
    detail::require_kind(state, lanes_[0].stepper->kind());
    detail::require_parameters(layout_, parameters);
    restore_kept(state);
    const at::NoGradGuard no_grad;
    for (ReplicaLane& lane : lanes_) {
      for (size_t i = 0; i < parameters.size(); ++i)
        lane.parameters[i].detach().copy_(parameters[i].second);
      lane.stepper->restore(state, parameters);
    }
    version_ = state.version;
    learning_rate_ = state.learning_rate;
  }

  void rebind(const World& world, std::vector<NamedTensors> replicas) override {
    detail::require_resizable(world_, world);
    if (world.local > world_.local)
      throw UsageError(
          fmt::format("replicas that each have an optimizer of their own ({}) cannot be added: its "
                      "state cannot "
                      "be copied",
                      lanes_[0].stepper->kind()));
    std::vector<std::unique_ptr<Stepper>> steppers;
    std::vector<detail::BucketState> states;
    for (ReplicaLane& lane : lanes_) {
      if (lane.reducer) states.push_back(lane.reducer->take_state());
      if (lane.sums) states.push_back(lane.sums->take_state());
    }
    for (int local = 0; local < world.local; ++local)
      steppers.push_back(std::move(lanes_[local].stepper));
    for (size_t gone = world.local; gone < states.size(); ++gone)
      detail::fold_residuals(states[0].tensors, states[gone].tensors);
    bind(world, std::move(replicas), std::move(steppers), std::move(states));
  }

 private:
  void restore_kept(const UpdaterState& state);

  void bind(const World& world, std::vector<NamedTensors> replicas,
            std::vector<std::unique_ptr<Stepper>> steppers,
            std::vector<detail::BucketState> states);
  void make_sums(ReplicaLane& lane, detail::BucketState state);
  void say_what_was_chosen() const;
  Verdict hand_in_in_turn(int replica, std::span<const at::Tensor> gradients, const Vote& vote);
  Verdict update_in_turn();
  void forget_step() {
    handed_in_in_turn_ = 0;
    told_in_turn_.assign(layout_.slots.size() + detail::kVoteWords, 0);
  }
  void sum_plainly();
  void sum_in_buckets();
  static void update(ReplicaLane& lane, double learning_rate);

  StepperFactory factory_;
  ReplicatedOptions options_;
  Slots layout_;
  World world_;
  std::vector<ReplicaLane> lanes_;
  std::unique_ptr<CrossDeviceReduction> reduction_in_turn_;
  std::atomic<double> learning_rate_{0};
  std::atomic<int64_t> version_{0};
  int handed_in_in_turn_ = 0;
  std::vector<uint8_t> told_in_turn_;  // by parameter, and VoteWords: the largest so far
};

// A first binding gives each replica memory of its own: an earlier fused step may have left all of
// them on one storage.
void ReplicatedUpdater::bind(const World& world, std::vector<NamedTensors> replicas,
                             std::vector<std::unique_ptr<Stepper>> steppers,
                             std::vector<detail::BucketState> states) {
  world_ = world;
  lanes_.clear();
  lanes_.resize(world_.local);
  states.resize(world_.local);
  for (int local = 0; local < world_.local; ++local) {
    ReplicaLane& lane = lanes_[local];
    for (auto& [name, tensor] : replicas[local]) {
      if (steppers.empty()) tensor.set_data(tensor.detach().clone());
      lane.parameters.push_back(tensor);
    }
    lane.stepper = steppers.empty() ? factory_(lane.parameters) : std::move(steppers[local]);
  }
  if (world_.in_turn()) {
    if (!reduction_in_turn_) reduction_in_turn_ = detail::make_reduction(options_);
    for (int local = 0; local < world_.local && is_chosen(options_); ++local)
      make_sums(lanes_[local], std::move(states[local]));
    return forget_step();
  }
  detail::for_each_local(world_, [&](int local) {
    ReplicaLane& lane = lanes_[local];
    lane.reducer = std::make_unique<detail::GradientReducer>(
        world_.groups[local], layout_, lane.parameters, ReduceOp::sum, options_, world_.time_limit,
        std::move(states[local]));
    lane.reducer->listen(false);
  });
}

void ReplicatedUpdater::restore_kept(const UpdaterState& state) {
  if (!options_.compression.on()) return;
  if (state.replicas.empty())
    throw UsageError(fmt::format(
        "the state has nothing that compression {} keeps on a replica: it is of a training without",
        to_string(options_.compression)));
  const auto kept_by = [&](size_t rank) {
    return detail::bucket_state_of(state.replicas[rank], layout_, options_.compression);
  };
  const size_t count = state.replicas.size();
  for (int local = 0; local < world_.local; ++local) {
    const auto rank = static_cast<size_t>(world_.first_rank + local);
    detail::BucketState kept = kept_by(rank < count ? rank : 0);
    if (rank >= count)
      for (detail::CodedState& tensor : kept.tensors) tensor.residual = {};
    for (auto gone = static_cast<size_t>(world_.size); rank == 0 && gone < count; ++gone) {
      detail::BucketState other = kept_by(gone);
      detail::fold_residuals(kept.tensors, other.tensors);
    }
    lanes_[local].bucket_sums().restore(std::move(kept));
  }
}

void ReplicatedUpdater::make_sums(ReplicaLane& lane, detail::BucketState state) {
  lane.memory = Array::zeros(DType::uint8, {std::max<int64_t>(layout_.total_bytes, 1)});
  lane.sums = std::make_unique<detail::BucketSums>(layout_, options_, world_.shape, ReduceOp::sum,
                                                   static_cast<std::byte*>(lane.memory.data()),
                                                   std::move(state));
}

void ReplicatedUpdater::say_what_was_chosen() const {
  int64_t all = 0, coded = 0;
  for (const ParameterSlot& slot : layout_.slots) {
    if (!slot.trained) continue;
    all += slot.num_elements;
    if (compresses(options_.compression, slot.dtype, slot.shape)) coded += slot.num_elements;
  }
  log(LogLevel::info,
      "gradients are reduced, then every replica is updated (not the fused step): reduction {}, "
      "compression {}; {:.1f} % of the elements are compressed",
      lanes_[0].reducer ? lanes_[0].reducer->reduction_name() : reduction_in_turn_->name(),
      describe(options_.compression),
      all == 0 ? 0.0 : 100 * static_cast<double>(coded) / static_cast<double>(all));
}

void ReplicatedUpdater::update(ReplicaLane& lane, double learning_rate) {
  at::NoGradGuard no_grad;
  lane.stepper->step(learning_rate);
}

Verdict ReplicatedUpdater::hand_in_in_turn(int replica, std::span<const at::Tensor> gradients,
                                           const Vote& vote) {
  ReplicaLane& lane = lanes_.at(replica);
  lane.keep.assign(lane.parameters.size(), {});
  for (size_t i = 0; i < gradients.size() && vote.part != kAbstains; ++i) {
    if (!gradients[i].defined()) continue;
    detail::check_gradient(layout_.slots[i], gradients[i]);
    lane.keep[i] = gradients[i].contiguous();
    told_in_turn_[i] = 1;
  }
  const detail::VoteWords words = detail::vote_words(vote);
  const auto told = std::span(told_in_turn_).last(words.size());
  std::ranges::transform(words, told, told.begin(),
                         [](uint8_t a, uint8_t b) { return std::max(a, b); });
  return ++handed_in_in_turn_ == world_.local ? update_in_turn() : Verdict();
}

Verdict ReplicatedUpdater::update_in_turn() {
  const Verdict verdict = detail::verdict_of(layout_, told_in_turn_);
  forget_step();
  if (verdict.left_out) return verdict;
  if (verdict.overflowed)
    for (ReplicaLane& lane : lanes_)
      for (at::Tensor& parameter : lane.parameters) parameter.mutable_grad().reset();
  else if (lanes_[0].sums)
    sum_in_buckets();
  else
    sum_plainly();
  for (ReplicaLane& lane : lanes_) {
    update(lane, learning_rate_);
    for (at::Tensor& parameter : lane.parameters) parameter.mutable_grad().reset();
    lane.keep.clear();
  }
  version_ = version_ + 1;
  return verdict;
}

void ReplicatedUpdater::sum_plainly() {
  std::vector<const void*> inputs(world_.size);
  for (size_t i = 0; i < layout_.slots.size(); ++i) {
    const ParameterSlot& slot = layout_.slots[i];
    bool used = false;
    for (int replica = 0; replica < world_.local; ++replica) {
      const at::Tensor& gradient = lanes_[replica].keep[i];
      inputs[replica] = gradient.defined() ? gradient.data_ptr() : nullptr;
      used |= gradient.defined();
    }
    for (ReplicaLane& lane : lanes_) {
      at::Tensor sum;
      if (used) {
        sum = at::empty(slot.shape, lane.parameters[i].options());
        reduce_inputs(slot.dtype, ReduceOp::sum, world_.shape, inputs, sum.data_ptr(),
                      slot.num_elements);
      }
      lane.parameters[i].mutable_grad() = sum;
    }
  }
}

// As over a group: through each replica's buckets, in which the sums then lie.
void ReplicatedUpdater::sum_in_buckets() {
  const size_t count = layout_.slots.size();
  std::vector<detail::BucketSums*> sums;
  std::vector<std::vector<int32_t>> used;
  std::vector<uint8_t> used_by_any(count, 0);
  for (ReplicaLane& lane : lanes_) {
    used.emplace_back(count, 0);
    for (size_t i = 0; i < count; ++i) {
      const int parameter = static_cast<int>(i);
      if (lane.sums->bucket_of(parameter) < 0) continue;
      const auto bytes =
          static_cast<size_t>(layout_.slots[i].num_elements * size_of(layout_.slots[i].dtype));
      used.back()[i] = lane.keep[i].defined();
      used_by_any[i] |= lane.keep[i].defined();
      if (lane.keep[i].defined()) {
        std::memcpy(lane.sums->gradient_of(parameter), lane.keep[i].data_ptr(), bytes);
      } else {
        std::memset(lane.sums->gradient_of(parameter), 0, bytes);
      }
    }
    sums.push_back(lane.sums.get());
  }
  detail::sum_in_turn(sums, used, *reduction_in_turn_, world_.shape);
  for (ReplicaLane& lane : lanes_)
    for (size_t i = 0; i < count; ++i)
      lane.parameters[i].mutable_grad() =
          used_by_any[i] ? detail::view_memory(lane.sums->gradient_of(static_cast<int>(i)),
                                               layout_.slots[i], lane.memory.owner())
                         : at::Tensor();
}

}  // namespace

std::shared_ptr<Updater> make_replicated_updater(const World& world, TorchOptimizerFactory factory,
                                                 std::vector<NamedTensors> replicas,
                                                 const ReplicatedOptions& options) {
  const Slots layout = Slots::of(detail::slots_of(replicas.at(0)));
  return std::make_shared<ReplicatedUpdater>(world, detail::steppers_of(std::move(factory), layout),
                                             std::move(replicas), options);
}

std::shared_ptr<Updater> make_replicated_updater(const World& world, const optim::Recipe& recipe,
                                                 std::vector<NamedTensors> replicas,
                                                 const ReplicatedOptions& options) {
  const Slots layout = Slots::of(detail::slots_of(replicas.at(0)));
  return std::make_shared<ReplicatedUpdater>(world, detail::rule_steppers(recipe, layout),
                                             std::move(replicas), options);
}

}  // namespace tutti
