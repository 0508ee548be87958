#include "tutti/train/fit/detail/whole_body.h"

#include "tutti/nn/collectives.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
std::unique_ptr<StepBody> body_of(Fit& fit, int local) {
  const World& world = fit.strategy().world();
  if (fit.options().microbatches > 1 || fit.model().laid_out->in_parts())
    return make_body_in_parts(fit);
  if (fit.strategy().options().step_graph) return make_graph_body(fit);
  const auto place = static_cast<size_t>(local);
  const bool there = place < world.queues.size() && world.queues[place].on_device();
  return there ? make_late_body(fit) : make_eager_body(fit);
}

WholeBody::WholeBody(Fit& fit)
    : fit_(fit), meets_(nn::meets_in_forward(*fit.model().modules.module(0))) {}

nn::SamplePlace WholeBody::place_of(const BatchOfStep& of) const {
  const int accumulate = fit_.options().accumulate;
  return {.seed = fit_.seed(),
          .step = of.epoch.first_update + of.batch.step() / accumulate,
          .first_row = of.batch.group_row(accumulate) + of.batch.first_row(of.replica)};
}

void WholeBody::train(const BatchOfStep& of) {
  if (has_none(of)) return update(of, {});
  const nn::SampleContext place(place_of(of));
  for (const auto& watcher : fit_.watchers()) watcher->batch_begins();
  const WatchedBatch watched{
      .epoch = of.epoch.number, .batch = of.batch.step(), .begin = Clock::now()};
  at::Tensor made;
  fit_.at_place(of.replica, of.epoch, of.batch, [&] {
    auto columns = of.input.take(of.replica, of.batch);
    const Divisors by = fit_.divisors_of(of.batch, of.input);
    for (const auto& watcher : fit_.watchers()) watcher->forward_begins();
    made = loss(of, std::move(columns), by);
  });
  fit_.raise_in_turn(of.epoch, of.tally.totals);
  for (const auto& watcher : fit_.watchers()) watcher->forward_ended(watched);
  update(of, made);
  for (const auto& watcher : fit_.watchers()) watcher->update_ended();
}

// Without a loss: the replica has no samples.
void WholeBody::update(const BatchOfStep& of, const at::Tensor& loss) {
  Optimizer& optimizer = fit_.optimizer();
  if (!of.batch.ends_group(fit_.options().accumulate)) {
    if (loss.defined()) optimizer.accumulate(of.replica, loss);
    return;
  }
  fit_.tell(of.replica, of.tally.totals);
  if (fit_.leaves_out(of.tally.totals))
    optimizer.leave_out(of.replica, loss);
  else if (loss.defined())
    optimizer.minimize(of.replica, loss);
  else
    optimizer.abstain(of.replica);
}

}  // namespace tutti::detail
