#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "tutti/base/event.h"
#include "tutti/strategy/optimizer/detail/optimizer_state.h"
#include "tutti/strategy/optimizer/loss_scaling.h"
#include "tutti/sync/detail/gradient_listener.h"
#include "tutti/sync/detail/gradients.h"

namespace tutti {
namespace {

void require_loss(std::string_view operation, const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1) return;
  throw UsageError(
      fmt::format("{}: expected a loss of one element, got {}; take average_loss(per_sample, "
                  "global_batch_size)",
                  operation, loss.defined() ? c10::str(loss.sizes()) : "an undefined tensor"));
}

// A constant of zero is what a replica without samples may have.
void require_graph(std::string_view operation, const at::Tensor& loss) {
  if (loss.item<double>() == 0) return;
  throw UsageError(fmt::format(
      "{}: the loss is {} but has no graph, so nothing would be trained: {}\n  a replica without "
      "samples gives a loss of zero, or calls abstain()",
      operation, loss.item<double>(),
      at::GradMode::is_enabled() ? "it was detached, or all parameters that it uses are frozen"
                                 : "gradients are disabled (NoGradGuard)"));
}

// From `seed`; undefined: from 1.
void backward(const ReplicaContext& replica, const at::Tensor& loss, const at::Tensor& seed = {}) {
  const TimedEvent timed("sync.backward", {"replica", int64_t{replica.rank()}});
  loss.backward(seed);
  replica.has_computed();
}

// False: the loss is a constant of zero.
bool backward_if_any(const ReplicaContext& replica, std::string_view operation,
                     const at::Tensor& loss) {
  if (!loss.requires_grad())
    require_graph(operation, loss);
  else
    backward(replica, loss);
  return loss.requires_grad();
}

bool has_any(const std::vector<at::Tensor>& gradients) {
  return std::ranges::any_of(gradients, &at::Tensor::defined);
}

}  // namespace

void Optimizer::minimize(ReplicaContext& replica, const at::Tensor& loss) {
  require_loss("minimize", loss);
  const int local = state_->local_rank(replica, "minimize");
  state_->take_part(local);
  State::Lane& lane = state_->lanes[local];
  if (lane.scale) {
    accumulate(replica, loss);
    hand_in_scaled(replica);
  } else {
    auto* const listener = state_->begin(replica);
    const bool waited = !lane.waiting.empty();
    lane.waiting.put(state_->updater->parameters(local));
    lane.waiting.clear();
    const detail::Listening listening(loss, waited ? nullptr : listener);
    const bool computed = backward_if_any(replica, "minimize", loss);
    state_->note_other(local, loss);
    hand_in(local, computed || waited ? kComputes : kAbstains);
  }
  state_->await_update(local);
}

void Optimizer::minimize(ReplicaContext& replica, const at::Tensor& per_sample,
                         int64_t global_batch_size) {
  minimize(replica, average_loss(per_sample, global_batch_size));
}

std::vector<at::Tensor> Optimizer::minimize(ReplicaContext& replica,
                                            const std::vector<at::Tensor>& inputs,
                                            const StepFunction& step) {
  const int local = state_->local_rank(replica, "minimize");
  state_->lanes[local].verdict = {.meets = true};  // of a step that the device makes
  const auto whole = [&](at::TensorList given) {
    StepLoss made = step(given);
    minimize(replica, made.loss);
    for (at::Tensor& output : made.outputs)
      if (output.defined()) output = output.detach();
    return std::move(made.outputs);
  };
  return state_->captured ? state_->captured->run(inputs, whole) : whole(inputs);
}

void Optimizer::accumulate(ReplicaContext& replica, const at::Tensor& loss) {
  require_loss("accumulate", loss);
  const int local = state_->local_rank(replica, "accumulate");
  State::Lane& lane = state_->lanes[local];
  if (!loss.requires_grad()) return require_graph("accumulate", loss);
  const auto& parameters = state_->updater->parameters(local);
  detail::require_cleared(state_->updater->layout(local), parameters);
  lane.waiting.put(parameters);
  backward(replica, loss, state_->seed_of(local, loss));
  state_->note_other(local, loss);
  lane.waiting.take(parameters);
}

void Optimizer::abstain(ReplicaContext& replica) {
  const int local = state_->local_rank(replica, "abstain");
  state_->take_part(local);
  if (state_->lanes[local].scale)
    hand_in_scaled(replica);
  else
    hand_in_waiting(local);
  state_->await_update(local);
}

void Optimizer::leave_out(ReplicaContext& replica, const at::Tensor& loss) {
  const int local = state_->local_rank(replica, "leave_out");
  if (state_->updater->parts().client != nullptr)
    throw UsageError("leave_out: parameter servers have parts of a step before others are made");
  State::Lane& lane = state_->lanes[local];
  state_->take_part(local);
  if (lane.scale) {
    if (loss.defined()) accumulate(replica, loss);
    return hand_in_scaled(replica, true);
  }
  state_->begin(replica);
  lane.waiting.clear();
  if (loss.defined()) backward_if_any(replica, "leave_out", loss);
  hand_in(local, kLeavesOut);
}

void Optimizer::apply(ReplicaContext& replica, std::span<const at::Tensor> gradients) {
  const int local = state_->local_rank(replica, "apply");
  const auto& trained = state_->updater->parameters(local);
  if (gradients.size() != trained.size())
    throw UsageError(fmt::format(
        "apply: got {} gradients for {} parameters; take gradients(loss, optimizer.parameters("
        "replica))",
        gradients.size(), trained.size()));
  if (state_->tables)
    throw UsageError(
        "apply: the model has embedding tables, whose rows get their gradients from minimize()");
  replica.has_computed();
  State::Lane& lane = state_->lanes[local];
  if (lane.scale || !lane.waiting.empty())
    throw UsageError(
        "apply: with scaled losses (scale_losses) or gradients that accumulate() has kept, "
        "minimize() makes the step");
  state_->take_part(local);
  state_->updater->begin(local, Overlap::off);
  lane.gradients.assign(gradients.begin(), gradients.end());
  exchange(local, kComputes);
  state_->await_update(local);
}

void Optimizer::zero_grad(ReplicaContext& replica) {
  const int local = state_->local_rank(replica, "zero_grad");
  for (const auto& parameter : state_->updater->parameters(local)) parameter.mutable_grad().reset();
  state_->lanes[local].waiting.clear();
  if (state_->tables) state_->tables->zero_gradients(local);
}

const std::vector<at::Tensor>& Optimizer::parameters(const ReplicaContext& replica) const {
  return state_->updater->parameters(state_->local_rank(replica, "parameters"));
}

void Optimizer::leave_out_if(ReplicaContext& replica, const at::Tensor& bad) {
  if (!bad.defined() || bad.numel() != 1)
    throw UsageError(fmt::format("leave_out_if: expected one element, got {}",
                                 bad.defined() ? c10::str(bad.sizes()) : "an undefined tensor"));
  const int local = state_->local_rank(replica, "leave_out_if");
  if (!replica.queue().on_device())
    throw UsageError("leave_out_if: these replicas do not compute on a device; use leave_out()");
  const at::Tensor one =
      bad.detach().reshape({}).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  at::Tensor& all = state_->lanes[local].vote.bad;
  all = all.defined() ? at::maximum(all, one) : one;
}

void Optimizer::tell(const ReplicaContext& replica, std::function<int()> signal, bool meets) {
  State::Lane& lane = state_->lanes[state_->local_rank(replica, "tell")];
  lane.signal = std::move(signal);
  lane.vote.meets = meets;
}

const Verdict& Optimizer::verdict(const ReplicaContext& replica) const {
  return state_->lanes[state_->local_rank(replica, "verdict")].verdict;
}

int64_t Optimizer::forget_left_out() {
  auto* const devices = state_->updater->parts().on_device;
  return devices != nullptr ? devices->forget_left_out() : 0;
}

void Optimizer::forget_accumulated() {
  for (size_t local = 0; local < state_->lanes.size(); ++local) {
    state_->lanes[local].waiting.clear();
    state_->lanes[local].vote = {};
    state_->lanes[local].signal = nullptr;
    state_->lanes[local].verdict = {};
    // What a backward() that failed has left.
    for (const auto& parameter : state_->updater->parameters(static_cast<int>(local)))
      parameter.mutable_grad().reset();
  }
  if (state_->tables) state_->tables->forget();
}

void Optimizer::scale_losses(const optim::LossScale& scale) {
  require_together(
      state_->strategy.options(),
      {.table = state_->tables ? state_->tables->specs().front().name : "", .scales_losses = true});
  for (State::Lane& lane : state_->lanes) lane.scale = scale;
  if (auto* const devices = state_->updater->parts().on_device) devices->scale_losses(scale);
  if (state_->captured) state_->captured->forget();
}

std::optional<optim::LossScale> Optimizer::loss_scale() const {
  if (const auto* there = state_->scale_there(0))
    return there->read(Deadline(state_->strategy.world().time_limit));
  return state_->lanes[0].scale;
}

// Whether gradients are finite is known to all where they meet in the update: devices find it out
// in theirs.
void Optimizer::hand_in_scaled(ReplicaContext& replica, bool leaves_out) {
  const int local = replica.local_rank();
  State::Lane& lane = state_->lanes[local];
  if (detail::DeviceLossScale* const scale = state_->scale_there(local)) {
    scale->begin_step();
    lane.waiting.scale(scale->reciprocal(), scale->overflowed());
    if (leaves_out) scale->overflowed().fill_(1);
  } else {
    lane.vote.overflows = !state_->unscale(replica) || leaves_out;
    if (lane.vote.overflows) lane.waiting.clear();
  }
  hand_in_waiting(local);
}

void Optimizer::hand_in_waiting(int local) {
  State::Lane& lane = state_->lanes[local];
  const PartInStep part = lane.waiting.empty() ? kAbstains : kComputes;
  state_->updater->begin(local, Overlap::off);
  lane.waiting.put(state_->updater->parameters(local));
  lane.waiting.clear();
  hand_in(local, part);
}

// Hands in the gradients that lie in the parameters.
void Optimizer::hand_in(int local, PartInStep part) {
  auto& gradients = state_->lanes[local].gradients;
  gradients.clear();
  for (const auto& parameter : state_->updater->parameters(local))
    gradients.push_back(parameter.grad());
  exchange(local, part);
}

void Optimizer::exchange(int local, PartInStep part) {
  Updater& updater = *state_->updater;
  const World& world = state_->strategy.world();
  State::Lane& lane = state_->lanes[local];
  auto& gradients = lane.gradients;
  const TimedEvent exchanged("sync.exchange", {"replica", int64_t{world.first_rank + local}});
  const bool rows = state_->tables && state_->tables->hand_in(local, part, updater.version(),
                                                              updater.learning_rate());
  if (rows && part == kComputes && !has_any(gradients)) part = kAbstains;  // rows alone are trained
  lane.vote.part = part;
  if (const auto asked = std::exchange(lane.signal, nullptr))
    lane.vote.signal = static_cast<uint8_t>(asked());
  Verdict verdict;
  try {
    verdict =
        updater.step(local, gradients, std::exchange(lane.vote, {}), Deadline(world.time_limit));
  } catch (const detail::NothingTrained& nothing) {
    state_->throw_nothing_trained(nothing, local);
  }
  if (!state_->takes_turns()) lane.other.reset();
  gradients.clear();
  for (const auto& parameter : updater.parameters(local)) parameter.mutable_grad().reset();
  state_->learn(local, verdict);
}

void Optimizer::prepare(ReplicaContext& replica) {
  state_->get_ready(state_->local_rank(replica, "prepare"));
}

void Optimizer::set_learning_rate(double learning_rate) {
  state_->updater->set_learning_rate(learning_rate);
}
double Optimizer::learning_rate() const { return state_->updater->learning_rate(); }
int64_t Optimizer::wire_bytes_per_step() const { return state_->updater->wire_bytes_per_step(); }
int64_t Optimizer::version() const { return state_->updater->version(); }
Updater& Optimizer::updater() const noexcept { return *state_->updater; }

const ReplicatedModules& Optimizer::modules() const noexcept { return state_->modules; }

SparseTables* Optimizer::tables() const noexcept { return state_->tables.get(); }

}  // namespace tutti
