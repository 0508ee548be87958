// Local updates: every replica steps by its own gradients, and now and then all take the mean of
// their changes (local SGD, DiLoCo). docs/guide/less_communication.md.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "tutti/base/log.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/replicated/detail/flat_parameters.h"
#include "tutti/sync/replicated/detail/local_numbers.h"
#include "tutti/sync/replicated/detail/stepper.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

using Flat = detail::FlatParameters;
using detail::Stepper;
using detail::StepperFactory;

constexpr const char *kOuter = "outer", *kOuterMomentum = "outer_momentum", *kOwn = "weights";
constexpr const char *kSince = "updates_since_average", *kNumbers = "local_updates";

struct LocalLane {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Stepper> stepper;
  std::vector<at::Tensor> keep;  // gradients of this turn
  std::vector<Flat> flats;       // those of one device in turn are the first lane's but for sums
  std::vector<at::Tensor> own;   // parameters, while the mean is shown
  int64_t since = 0;             // updates of its own after the last averaging
};

class LocalUpdater final : public Updater, private AveragedParameters, private ParameterCopies {
 public:
  LocalUpdater(const World& world, const StepperFactory& factory,
               std::vector<NamedTensors> replicas, const LocalUpdates& local)
      : local_(local), layout_(Slots::of(detail::slots_of(replicas.at(0)))), world_(world) {
    check_local(local_);
    for (const ParameterSlot& slot : layout_.slots)
      if (slot.dtype != DType::float32 && slot.dtype != DType::float64)
        throw UsageError(
            fmt::format("local updates: parameter \"{}\" is of {}; expected float32 or "
                        "float64",
                        slot.name, name_of(slot.dtype)));
    lanes_.resize(static_cast<size_t>(world_.local));
    for (size_t i = 0; i < lanes_.size(); ++i) begin_lane(lanes_[i], replicas[i]);
    make_alike();
    for (LocalLane& lane : lanes_) {
      lane.stepper = factory(lane.parameters);
      lane.flats = Flat::of(layout_, lane.parameters);
    }
    parts_.copies = this;
    learning_rate_ = lanes_[0].stepper->learning_rate();
    forget_step();
    if (world_.chief)
      log(LogLevel::info,
          "replicas make {} update{} of their own from update {} on, then take the mean of their "
          "changes: outer learning rate {}, momentum {}{}",
          local_.every, local_.every == 1 ? "" : "s", local_.start_step, local_.outer.learning_rate,
          local_.outer.momentum, local_.outer.nesterov ? " (Nesterov)" : "");
  }

  void ready(int replica, const Deadline&) override {
    if (world_.in_turn() && replica == 0) forget_step();
  }
  detail::GradientListener* begin(int replica, Overlap) override {
    detail::require_cleared(layout_, lanes_.at(replica).parameters);
    return nullptr;
  }
  Verdict step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
               const Deadline& deadline) override;

  UpdaterView view(int replica) const override {
    return {lanes_.at(replica).parameters, layout_, version_, learning_rate_};
  }
  void set_learning_rate(double learning_rate) override {
    optim::require_learning_rate(learning_rate);
    learning_rate_ = learning_rate;
  }
  int64_t wire_bytes_per_step() const override {
    const int64_t each = detail::sum_wire_bytes(layout_.trained_bytes(), world_.size);
    return together(version_ - 1) ? each : each / local_.every;
  }
  AveragedParameters* averaged() noexcept override { return this; }
  void require_whole() const override;

  UpdaterState state() const override;
  void restore(const UpdaterState& state, const NamedTensors& parameters) override;
  void rebind(const World&, std::vector<NamedTensors>) override {
    throw UsageError("replicas that update parameters of their own cannot change in number");
  }

 private:
  void average() override;
  void show() override;
  void hide() override;
  void take_over() override;
  NamedTensors last() const override { return named(kEmpty, &Flat::outer); }

  static constexpr const char* kEmpty = "";
  /// Whether the update after so many is one of all.
  bool together(int64_t version) const { return version < local_.start_step; }
  std::string kind() const { return "local " + lanes_[0].stepper->kind(); }
  LocalLane& outer_of(LocalLane& lane) { return world_.in_turn() ? lanes_[0] : lane; }

  static void begin_lane(LocalLane& lane, NamedTensors& replica);
  void make_alike();
  void require_hidden(const char* what) const;
  NamedTensors named(std::string_view prefix, at::Tensor Flat::* of) const;
  void forget_step();
  void take_in_turn(LocalLane& lane, std::span<const at::Tensor> gradients, const Vote& vote);
  Verdict update_in_turn();
  void update_alone(LocalLane& lane, std::span<const at::Tensor> gradients, double rate);
  static void step_by(LocalLane& lane, double rate);
  void update_together(LocalLane& lane, std::span<const int32_t> used, double rate);
  void reduce(LocalLane& lane, ReduceOp op);
  void reduce_in_turn(ReduceOp op);
  void put_changes(LocalLane& lane);
  void outer_step(LocalLane& lane);
  void average_all(const std::function<void(LocalLane&)>& after);

  const LocalUpdates local_;
  const Slots layout_;
  World world_;
  std::vector<LocalLane> lanes_;
  std::atomic<double> learning_rate_{0};
  std::atomic<int64_t> version_{0};
  bool shown_ = false;  // the mean, on all lanes
  int handed_in_in_turn_ = 0;
  std::vector<int32_t> told_in_turn_;  // by parameter, and VoteWords: the largest so far
};

// A first binding gives each replica memory of its own: an earlier fused step may have left all of
// them on one storage.
void LocalUpdater::begin_lane(LocalLane& lane, NamedTensors& replica) {
  for (auto& [name, tensor] : replica) {
    tensor.set_data(tensor.detach().clone(at::MemoryFormat::Contiguous));
    lane.parameters.push_back(tensor);
  }
}

// By rank 0's values: those of an earlier updater may have been left in the middle of a round.
void LocalUpdater::make_alike() {
  if (!world_.in_turn())
    return detail::for_each_local(world_, [this](int local) {
      const auto number = static_cast<size_t>(local);
      for (const at::Tensor& parameter : lanes_[number].parameters)
        world_.groups[number]
            .broadcast(span_of(parameter.detach()), 0, world_.time_limit)
            .wait(world_.time_limit);
    });
  for (const LocalLane& lane : lanes_)
    for (size_t i = 0; i < lane.parameters.size(); ++i)
      lane.parameters[i].detach().copy_(lanes_[0].parameters[i].detach());
}

void LocalUpdater::require_whole() const {
  if (lanes_[0].since == 0 || shown_) return;
  throw UsageError(fmt::format(
      "local updates: {} update{} after the last averaging each replica has weights of its own, "
      "and "
      "no one's are the model's; expected that at the end of an epoch or of fit(), or between "
      "show() and hide() of optimizer().updater().averaged()",
      lanes_[0].since, lanes_[0].since == 1 ? "" : "s"));
}

void LocalUpdater::require_hidden(const char* what) const {
  if (shown_)
    throw UsageError(
        fmt::format("local updates: {} while the mean is shown; expected hide() before", what));
}

void LocalUpdater::forget_step() {
  handed_in_in_turn_ = 0;
  told_in_turn_.assign(layout_.slots.size() + detail::kVoteWords, 0);
}

// Votes of all, and where the gradients are summed what each uses: the largest counts.
Verdict LocalUpdater::step(int replica, std::span<const at::Tensor> gradients, const Vote& vote,
                           const Deadline& deadline) {
  LocalLane& lane = lanes_.at(replica);
  require_hidden("an update");
  for (size_t i = 0; i < gradients.size() && vote.part == kComputes; ++i)
    if (gradients[i].defined()) detail::check_gradient(layout_.slots[i], gradients[i]);
  if (vote.part != kComputes) gradients = {};
  if (world_.in_turn()) {
    take_in_turn(lane, gradients, vote);
    return ++handed_in_in_turn_ == world_.local ? update_in_turn() : Verdict();
  }
  const int64_t next = version_ + 1;
  Group& group = world_.groups[static_cast<size_t>(replica)];
  const Millis limit = std::min(world_.time_limit, deadline.limit());
  std::vector<int32_t> told(layout_.slots.size() + detail::kVoteWords);
  for (size_t i = 0; i < gradients.size(); ++i) told[i] = gradients[i].defined();
  std::ranges::copy(detail::vote_words(vote), told.end() - detail::kVoteWords);
  double rate = learning_rate_;  // rank 0's counts
  group.all_reduce(span_of(std::span(told)), ReduceOp::max, limit).wait(limit);
  group.broadcast({&rate, 1, DType::float64}, 0, limit).wait(limit);
  const Verdict verdict = detail::verdict_of(layout_, told);
  if (verdict.left_out) return verdict;
  if (verdict.overflowed) gradients = {};
  if (together(next - 1)) {
    for (Flat& flat : lane.flats) flat.put_gradients(gradients);
    reduce(lane, ReduceOp::sum);
    update_together(lane, told, rate);
  } else {
    update_alone(lane, gradients, rate);
    if (++lane.since >= local_.every) {
      put_changes(lane);
      reduce(lane, ReduceOp::mean);
      outer_step(lane);
    }
  }
  version_ = next;  // every lane writes the same value
  return verdict;
}

void LocalUpdater::take_in_turn(LocalLane& lane, std::span<const at::Tensor> gradients,
                                const Vote& vote) {
  lane.keep.assign(lane.parameters.size(), {});
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    lane.keep[i] = gradients[i].contiguous();
    told_in_turn_[i] = 1;
  }
  const detail::VoteWords words = detail::vote_words(vote);
  const auto told = std::span(told_in_turn_).last(words.size());
  for (size_t i = 0; i < words.size(); ++i) told[i] = std::max<int32_t>(told[i], words[i]);
}

Verdict LocalUpdater::update_in_turn() {
  std::vector<int32_t> told = told_in_turn_;
  forget_step();
  const Verdict verdict = detail::verdict_of(layout_, told);
  if (verdict.left_out) return verdict;
  if (verdict.overflowed)
    for (LocalLane& lane : lanes_) std::ranges::fill(lane.keep, at::Tensor());
  const double rate = learning_rate_;
  if (together(version_)) {
    for (LocalLane& lane : lanes_)
      for (Flat& flat : lane.flats) flat.put_gradients(lane.keep);
    reduce_in_turn(ReduceOp::sum);
    for (LocalLane& lane : lanes_) update_together(lane, told, rate);
  } else {
    for (LocalLane& lane : lanes_) {
      update_alone(lane, lane.keep, rate);
      ++lane.since;
    }
    if (lanes_[0].since >= local_.every) average();
  }
  for (LocalLane& lane : lanes_) lane.keep.clear();
  version_ = version_ + 1;
  return verdict;
}

// By the sums, as if there were no local updates.
void LocalUpdater::update_together(LocalLane& lane, std::span<const int32_t> used, double rate) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : lane.parameters) parameter.mutable_grad().reset();
  for (const Flat& flat : lane.flats)
    for (const Flat::Piece& piece : flat.pieces)
      if (used[piece.parameter] != 0) {
        const at::Tensor& parameter = lane.parameters[piece.parameter];
        parameter.mutable_grad() = Flat::part(flat.sum, piece).reshape(parameter.sizes()).clone();
      }
  step_by(lane, rate);
  for (Flat& flat : lane.flats) flat.begin_from(lane.parameters);
}

// Losses are divided by the global batch: a replica's own gradient is that of its part of it.
void LocalUpdater::update_alone(LocalLane& lane, std::span<const at::Tensor> gradients,
                                double rate) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < lane.parameters.size(); ++i) {
    const bool used = i < gradients.size() && gradients[i].defined();
    lane.parameters[i].mutable_grad() =
        used ? (gradients[i] * world_.size).contiguous() : at::Tensor();
  }
  step_by(lane, rate);
}

void LocalUpdater::step_by(LocalLane& lane, double rate) {
  const at::NoGradGuard no_grad;
  lane.stepper->step(rate);
  for (at::Tensor& parameter : lane.parameters) parameter.mutable_grad().reset();
}

void LocalUpdater::reduce(LocalLane& lane, ReduceOp op) {
  if (world_.in_turn() || world_.size == 1) return;
  const auto number = static_cast<size_t>(&lane - lanes_.data());
  Group& group = world_.groups[number];
  for (const Flat& flat : lane.flats)
    group.all_reduce(flat.span(), op, world_.time_limit).wait(world_.time_limit);
}

void LocalUpdater::reduce_in_turn(ReduceOp op) {
  for (size_t f = 0; f < lanes_[0].flats.size(); ++f) {
    std::vector<const void*> inputs;
    for (const LocalLane& lane : lanes_) inputs.push_back(lane.flats[f].sum.data_ptr());
    const Flat& first = lanes_[0].flats[f];
    at::Tensor sum = at::empty_like(first.sum);
    reduce_inputs(first.dtype, op, world_.shape, inputs, sum.data_ptr(), first.count);
    for (LocalLane& lane : lanes_) lane.flats[f].sum.copy_(sum);
  }
}

void LocalUpdater::put_changes(LocalLane& lane) {
  for (size_t f = 0; f < lane.flats.size(); ++f)
    lane.flats[f].put_changes(lane.parameters, outer_of(lane).flats[f]);
}

// Of lanes in turn the first takes it for all, and comes first.
void LocalUpdater::outer_step(LocalLane& lane) {
  const at::NoGradGuard no_grad;
  LocalLane& outer = outer_of(lane);
  for (size_t f = 0; f < lane.flats.size(); ++f) {
    if (&outer == &lane) lane.flats[f].step(local_.outer);
    lane.flats[f].copy_to(lane.parameters, outer.flats[f].outer);
  }
  lane.since = 0;
}

// Puts the mean change of all into each lane's sums, and calls `after` for each.
void LocalUpdater::average_all(const std::function<void(LocalLane&)>& after) {
  if (world_.in_turn()) {
    for (LocalLane& lane : lanes_) put_changes(lane);
    reduce_in_turn(ReduceOp::mean);
    for (LocalLane& lane : lanes_) after(lane);
    return;
  }
  detail::for_each_local(world_, [&](int local) {
    LocalLane& lane = lanes_[static_cast<size_t>(local)];
    put_changes(lane);
    reduce(lane, ReduceOp::mean);
    after(lane);
  });
}

void LocalUpdater::average() {
  require_hidden("an averaging");
  if (lanes_[0].since == 0) return;
  average_all([this](LocalLane& lane) { outer_step(lane); });
}

// The mean itself, which no outer step has changed.
void LocalUpdater::show() {
  require_hidden("show()");
  shown_ = true;
  if (lanes_[0].since == 0) return;
  try {
    average_all([this](LocalLane& lane) {
      const at::NoGradGuard no_grad;
      std::vector<at::Tensor> own;
      for (const at::Tensor& parameter : lane.parameters) own.push_back(parameter.detach().clone());
      lane.own = std::move(own);
      for (size_t f = 0; f < lane.flats.size(); ++f)
        lane.flats[f].copy_to(lane.parameters, outer_of(lane).flats[f].outer + lane.flats[f].sum);
    });
  } catch (...) {
    hide();
    throw;
  }
}

void LocalUpdater::hide() {
  const at::NoGradGuard no_grad;
  for (LocalLane& lane : lanes_) {
    for (size_t i = 0; i < lane.own.size(); ++i) lane.parameters[i].detach().copy_(lane.own[i]);
    lane.own.clear();
  }
  shown_ = false;
}

// A new round begins from what was written, and nothing is left of what was there to hide.
void LocalUpdater::take_over() {
  for (LocalLane& lane : lanes_) {
    for (Flat& flat : lane.flats) {
      flat.begin_from(lane.parameters);
      flat.velocity.zero_();
    }
    lane.own.clear();
    lane.since = 0;
  }
  shown_ = false;
}

NamedTensors LocalUpdater::named(std::string_view prefix, at::Tensor Flat::* of) const {
  const LocalLane& lane = lanes_[0];
  NamedTensors all;
  for (size_t i = 0; i < layout_.slots.size(); ++i)
    if (prefix.empty() && !layout_.slots[i].trained)
      all.emplace_back(layout_.slots[i].name, lane.parameters[i].detach());
  for (const Flat& flat : lane.flats)
    for (const Flat::Piece& piece : flat.pieces) {
      const ParameterSlot& slot = layout_.slots[piece.parameter];
      all.emplace_back(prefix.empty() ? slot.name : detail::state_tensor_name(prefix, slot.name),
                       Flat::part(flat.*of, piece).reshape(slot.shape));
    }
  return all;
}

UpdaterState LocalUpdater::state() const {
  UpdaterState state{kind(), version_, learning_rate_, named(kOuter, &Flat::outer)};
  if (local_.outer.momentum != 0)
    std::ranges::move(named(kOuterMomentum, &Flat::velocity), std::back_inserter(state.tensors));
  state.tensors.emplace_back(kSince, at::full({1}, lanes_[0].since, at::kLong));
  const detail::LocalNumbers numbers = detail::numbers_of(local_);
  state.tensors.emplace_back(kNumbers, at::tensor(at::ArrayRef<double>(numbers), at::kDouble));
  for (const LocalLane& lane : lanes_) {
    const auto& weights = lane.own.empty() ? lane.parameters : lane.own;
    NamedTensors own = lane.stepper->state();
    for (size_t i = 0; i < weights.size(); ++i)
      own.emplace_back(detail::state_tensor_name(kOwn, layout_.slots[i].name), weights[i].detach());
    state.replicas.push_back(std::move(own));
  }
  return state;
}

void LocalUpdater::restore(const UpdaterState& state, const NamedTensors& parameters) {
  detail::require_kind(state, kind());
  detail::require_parameters(layout_, parameters);
  const at::Tensor& then = detail::tensor_named(state, kNumbers);
  detail::LocalNumbers numbers{};
  if (then.scalar_type() != at::kDouble || then.numel() != std::ssize(numbers))
    throw UsageError(
        fmt::format("\"{}\" of the state has {} elements of {}; expected {} of float64", kNumbers,
                    then.numel(), c10::toString(then.scalar_type()), numbers.size()));
  std::ranges::copy_n(then.contiguous().data_ptr<double>(), std::ssize(numbers), numbers.begin());
  detail::require_same_local(numbers, local_);
  if (std::ssize(state.replicas) != world_.size)
    throw UsageError(fmt::format(
        "{} replicas had weights and an optimizer of their own, and here are {}; go on with as "
        "many, or begin anew with their weights (--from)",
        state.replicas.size(), world_.size));
  const at::NoGradGuard no_grad;
  for (size_t local = 0; local < lanes_.size(); ++local) {
    LocalLane& lane = lanes_[local];
    const auto& own = state.replicas[static_cast<size_t>(world_.first_rank) + local];
    lane.stepper->restore({lane.stepper->kind(), state.version, state.learning_rate, own, {}},
                          parameters);
    const UpdaterState kept{.kind = state.kind, .tensors = own};
    for (size_t i = 0; i < lane.parameters.size(); ++i)
      lane.parameters[i].detach().copy_(
          detail::tensor_named(kept, detail::state_tensor_name(kOwn, layout_.slots[i].name)));
    for (Flat& flat : lane.flats)
      for (const Flat::Piece& piece : flat.pieces) {
        const std::string& name = layout_.slots[piece.parameter].name;
        const auto take = [&](const char* what, at::Tensor& to) {
          Flat::part(to, piece).copy_(
              detail::tensor_named(state, detail::state_tensor_name(what, name)).reshape({-1}));
        };
        take(kOuter, flat.outer);
        if (local_.outer.momentum != 0) take(kOuterMomentum, flat.velocity);
      }
    lane.since = detail::tensor_named(state, kSince).item<int64_t>();
    lane.own.clear();
  }
  shown_ = false;
  version_ = state.version;
  learning_rate_ = state.learning_rate;
}

}  // namespace

std::shared_ptr<Updater> make_local_updater(const World& world, TorchOptimizerFactory factory,
                                            std::vector<NamedTensors> replicas,
                                            const LocalUpdates& local) {
  const Slots layout = Slots::of(detail::slots_of(replicas.at(0)));
  return std::make_shared<LocalUpdater>(world, detail::steppers_of(std::move(factory), layout),
                                        std::move(replicas), local);
}

std::shared_ptr<Updater> make_local_updater(const World& world, const optim::Recipe& recipe,
                                            std::vector<NamedTensors> replicas,
                                            const LocalUpdates& local) {
  const Slots layout = Slots::of(detail::slots_of(replicas.at(0)));
  return std::make_shared<LocalUpdater>(world, detail::rule_steppers(recipe, layout),
                                        std::move(replicas), local);
}

}  // namespace tutti
