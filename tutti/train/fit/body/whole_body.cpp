#include "tutti/train/fit/detail/whole_body.h"

#include <thread>

#include "tutti/base/random.h"
#include "tutti/nn/collectives.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
namespace {

/// Threads of a replica that computes alone, the first one's where they take turns; else 1.
int threads_to_watch(Fit& fit, int local) {
  const World& world = fit.strategy().world();
  const bool alone = (world.size == 1 || world.in_turn()) && local == 0;
  return alone ? fit.strategy().options().threads_per_replica : 1;
}

}  // namespace

std::unique_ptr<StepBody> body_of(Fit& fit, int local) {
  const World& world = fit.strategy().world();
  if (fit.options().microbatches > 1 || fit.model().laid_out->in_parts())
    return make_body_in_parts(fit);
  if (fit.strategy().options().step_graph) return make_graph_body(fit, local);
  const auto place = static_cast<size_t>(local);
  const bool there = place < world.queues.size() && world.queues[place].on_device();
  return there ? make_late_body(fit, local) : make_eager_body(fit, local);
}

WholeBody::WholeBody(Fit& fit, int local)
    : fit_(fit),
      meets_(nn::meets_in_forward(*fit.model().modules.module(0))),
      cores_(threads_to_watch(fit, local)) {}

nn::SamplePlace WholeBody::place_of(const BatchOfStep& of) const {
  const int accumulate = fit_.options().accumulate;
  return {.seed = fit_.seed(),
          .step = of.epoch.first_update + of.batch.step() / accumulate,
          .first_row = of.batch.group_row(accumulate) + of.batch.first_row(of.replica)};
}

void WholeBody::train(const BatchOfStep& of) {
  if (has_none(of)) return update(of, {});
  LateParameters* const late = fit_.optimizer().updater().parts().late;
  if (fit_.options().slow && late != nullptr) late->complete();  // waiting is not computing
  const TimePoint begin = Clock::now();
  const nn::SampleContext place(place_of(of));
  at::Tensor made;
  fit_.at_place(of.replica, of.epoch, of.batch, [&] {
    auto columns = Fit::take_columns(of.replica, of.batch, of.input);
    const Divisors by = fit_.divisors_of(of.batch, of.input);
    cores_.begin();
    made = loss(of, std::move(columns), by);
  });
  const Totals& totals = of.tally.totals;
  if (of.epoch.world->in_turn() && totals.bad_step >= 0 && fit_.options().on_nan == OnNan::stop)
    fit_.raise(of.epoch, totals);  // the update is still to come
  be_slow(of, begin);
  update(of, made);
  cores_.end();
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

void WholeBody::be_slow(const BatchOfStep& of, TimePoint begin) const {
  const auto& slow = fit_.options().slow;
  if (!slow) return;
  const uint64_t bits =
      random_key(fit_.seed(), RandomPurpose::test,
                 {static_cast<uint64_t>(of.epoch.number), static_cast<uint64_t>(of.batch.step())});
  if (uniform_double(bits) >= slow->probability) return;
  // Backward, which is still to come, takes about twice as long as forward.
  std::this_thread::sleep_for(3 * (slow->factor - 1) * (Clock::now() - begin));
}

}  // namespace tutti::detail
