// A step of a fit(), and what follows it.

#include <torch/types.h>

#include <algorithm>
#include <span>

#include "tutti/base/event.h"
#include "tutti/cluster/join/join.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/located.h"
#include "tutti/train/model/detail/placement.h"

namespace tutti::detail {

void Fit::require_here(const ReplicaContext& replica) const {
  detail::require_here(*model_.modules.module(replica.local_rank()), replica);
}

void Fit::at_place(const ReplicaContext& replica, const Epoch& epoch, const DistributedBatch& batch,
                   const std::function<void()>& work) const {
  const int64_t step = batch.step() / options_.accumulate;
  try {
    work();
  } catch (const RowError& error) {
    throw error.at(place_words(replica, epoch, step), rows_of(*epoch.data, batch, replica));
  } catch (const c10::OutOfMemoryError&) {
    throw;  // step() says what would fit
  } catch (const std::exception&) {
    std::rethrow_exception(located(place_words(replica, epoch, step)));
  }
}

StepInput Fit::input_of(ReplicaContext& replica, const Epoch& epoch, int64_t first, int64_t end) {
  if (!counted_.wanted()) return {};
  StepInput input;
  at_place(replica, epoch, epoch.batch(first),
           [&] { input = counted_.read(replica.local_rank(), epoch, first, end); });
  CountedInput::add_up(replica, *epoch.world, input);
  return input;
}

void Fit::begin_step() {
  report_step(compiled_.optimizer.version() + 1, number_);
  if (compiled_.rate)
    compiled_.optimizer.set_learning_rate((*compiled_.rate)(compiled_.optimizer.version()));
  if (callbacks_->any()) callbacks_->step_begin();
}

void Fit::step(ReplicaContext& replica, const Forward& forward, const Epoch& epoch, int64_t step,
               Tally& tally) {
  if (replica.local_rank() == 0) begin_step();
  const int64_t first = step * options_.accumulate;
  const int64_t end = std::min(first + options_.accumulate, epoch.data->num_batches());
  if (epoch.loader && course_.by_lease && replica.local_rank() == 0) epoch.loader->expect(first);
  StepBody& body = *way_.bodies[static_cast<size_t>(replica.local_rank())];
  StepInput input = input_of(replica, epoch, first, end);
  for (int64_t number = first; number < end; ++number) {
    const DistributedBatch batch = epoch.batch(number);
    try {
      body.train({replica, forward, epoch, batch, input, tally});
    } catch (const c10::OutOfMemoryError& error) {
      raise_out_of_memory(replica, epoch, batch, error);
    }
  }
}

// What the chief's callbacks decide here is agreed on in the same step.
void Fit::after_step(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals) {
  if (!callbacks_->any() || replica.local_rank() != 0) return;
  callbacks_->step_end(step + 1, history_.steps + 1, images_after(epoch, step), shown(totals));
  totals.stop = callbacks_->wants();
  // Where workers do not meet in every step this error ends the worker, as any does.
  if (totals.stop == Stop::failed && !callbacks_->together()) callbacks_->rethrow();
}

void Fit::after_step_of_all(const Epoch& epoch, int64_t step, Totals& totals) {
  totals.signal = asked_to_end();
  if (!callbacks_->any()) return;
  callbacks_->step_end(step + 1, history_.steps + 1, images_after(epoch, step), totals);
  totals.stop = callbacks_->wants();
}

int64_t Fit::samples_of(const Epoch& epoch, int64_t step) const {
  return epoch.batch(step * options_.accumulate).group_size(options_.accumulate);
}

int64_t Fit::images_after(const Epoch& epoch, int64_t step) const {
  return since_.images + samples_of(epoch, step);
}

void Fit::stepped(const Epoch& epoch, int64_t step, const Totals& totals) {
  const int64_t first = step * options_.accumulate;
  const StepFacts facts{
      .data = *epoch.data,
      .world = *epoch.world,
      .epoch = epoch.number,
      .first_batch = first,
      .end_batch = std::min(first + options_.accumulate, epoch.data->num_batches())};
  for (const auto& watcher : watchers_) watcher->after_step(facts);
  const TimePoint now = Clock::now();
  const int64_t samples = samples_of(epoch, step);
  emit("train.step",
       {{"step", step},
        {"samples", samples},
        {"us", std::chrono::duration<double, std::micro>(now - since_.step).count()}});
  history_.step_ms.push_back(std::chrono::duration<float, std::milli>(now - since_.step).count());
  since_.step = now;
  ++history_.steps;  // of this worker, until all have come to the epoch's end
  since_.images += samples;
  if (shown_.progress->due(now)) {
    shown_.progress->show(step + 1, since_.images, means_of(shown(totals), compiled_.goals), now);
  }
}

}  // namespace tutti::detail
