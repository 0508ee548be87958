// One step of a fit(): what a replica does in it, and what follows it.

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <span>
#include <thread>

#include "tutti/base/event.h"
#include "tutti/base/random.h"
#include "tutti/base/stop.h"
#include "tutti/cluster/join/join.h"
#include "tutti/nn/sample_context.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/sync/gradient_meter.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/located.h"
#include "tutti/train/model/detail/placement.h"

namespace tutti::detail {

void Fit::require_here(const ReplicaContext& replica) const {
  detail::require_here(*model_.modules.module(replica.local_rank()), replica);
}

template <class Work>
void Fit::at_place(const ReplicaContext& replica, const Epoch& epoch, const DistributedBatch& batch,
                   Work work) const {
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

Fit::StepInput Fit::input_of(ReplicaContext& replica, const Epoch& epoch, int64_t first,
                             int64_t end) {
  if (!counts_) return {};
  const World& world = *epoch.world;
  const auto local = static_cast<size_t>(replica.local_rank());
  StepInput input;
  at_place(replica, epoch, epoch.batch(first), [&] {
    if (world.in_turn() && local == 0) in_turn_ = read_in_turn(epoch, first, end);
    input = world.in_turn() ? std::move(in_turn_[local])
                            : read_counted(replica.local_rank(), epoch, first, end);
  });
  if (!world.in_turn() && replica.group().size() > 1)
    replica.group().all_reduce_now(span_of(std::span<double>(input.counted)), ReduceOp::sum,
                                   world.time_limit);
  return input;
}

void Fit::step(ReplicaContext& replica, const Forward& forward, const Epoch& epoch, int64_t step,
               Tally& tally) {
  if (replica.local_rank() == 0) report_step(compiled_.optimizer.version() + 1, number_);
  if (compiled_.rate && replica.local_rank() == 0)
    compiled_.optimizer.set_learning_rate((*compiled_.rate)(compiled_.optimizer.version()));
  const int64_t first = step * options_.accumulate;
  const int64_t end = std::min(first + options_.accumulate, epoch.data->num_batches());
  if (epoch.loader && course_.by_lease && replica.local_rank() == 0) epoch.loader->expect(first);
  StepInput input = input_of(replica, epoch, first, end);
  for (int64_t number = first; number < end; ++number) {
    const DistributedBatch batch = epoch.batch(number);
    try {
      if (in_parts_)
        train_in_parts(replica, epoch, batch, input, tally);
      else
        train_on(replica, forward, epoch, batch, input, tally);
    } catch (const c10::OutOfMemoryError& error) {
      raise_out_of_memory(replica, epoch, batch, error);
    }
  }
}

// One batch; what comes before the last one of a step is not communicated.
void Fit::train_on(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                   const DistributedBatch& batch, StepInput& input, Tally& tally) {
  const int64_t step = batch.step() / options_.accumulate;
  const bool updates = batch.ends_group(options_.accumulate);
  const int64_t samples = batch.local_size(replica);
  Totals& totals = tally.totals;
  if (samples == 0 && !meets_) {
    tell(replica, totals);
    if (updates && leaves_out(totals))
      compiled_.optimizer.leave_out(replica);
    else if (updates)
      compiled_.optimizer.abstain(replica);
    return;
  }
  LateParameters* const late = compiled_.optimizer.updater().parts().late;
  if (options_.slow && late != nullptr) late->complete();  // waiting is not computing
  const TimePoint begin = Clock::now();
  // Rows of the step, however many batches it has: dropout is that of one large batch.
  const nn::SampleContext place(
      {.seed = seed_,
       .step = epoch.first_update + step,
       .first_row = batch.group_row(options_.accumulate) + batch.first_row(replica)});
  if (model_.strategy.options().step_graph && !leaves_out(totals)) {
    tell(replica, totals);
    at_place(replica, epoch, batch, [&] {
      step_as_graph(replica, forward, epoch, batch, batch.host_columns(replica), tally);
    });
    return;
  }
  at::Tensor loss;
  at_place(replica, epoch, batch, [&] {
    auto columns = take_columns(replica, batch, input);
    const Divisors by = divisors_of(batch, input);
    cores_.begin();
    loss = replica.queue().on_device()
               ? loss_on_device(replica, forward, epoch, batch, std::move(columns), by, tally)
               : loss_of(replica, forward, epoch, batch, columns, by, totals);
  });
  if (epoch.world->in_turn() && totals.bad_step >= 0 && options_.on_nan == OnNan::stop)
    raise(epoch, totals);  // the update is still to come
  be_slow(epoch, batch.step(), begin);
  tell(replica, totals);
  if (updates && leaves_out(totals))
    compiled_.optimizer.leave_out(replica, loss);
  else if (updates)
    compiled_.optimizer.minimize(replica, loss);
  else
    compiled_.optimizer.accumulate(replica, loss);
  cores_.end();
}

at::Tensor Fit::loss_of(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                        const DistributedBatch& batch, at::TensorList columns, const Divisors& by,
                        Totals& totals) {
  const BatchParts parts =
      parts_of(columns, model_.num_inputs, compiled_.goals, options_.class_weight);
  Tensors outputs;
  const at::Tensor loss = [&] {
    const TimedEvent timed("train.forward", {"replica", int64_t{replica.rank()}});
    outputs = compiled_.outputs(forward, parts.inputs);
    return totals.add_losses(compiled_.goals, outputs, parts, by);
  }();
  const int64_t samples = batch.local_size(replica);
  if (samples > 0 && !loss.requires_grad()) throw_without_graph();
  totals.samples += samples;
  if (samples > 0) totals.add_metrics(compiled_.goals, outputs, parts);
  if (!std::isfinite(totals.loss(compiled_.goals)) && totals.bad_step < 0)
    found_not_finite(replica, epoch, batch, {parts, outputs, {}}, totals);
  return loss;
}

// The host queues it and goes on; whether the loss is finite decides on the device.
at::Tensor Fit::loss_on_device(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                               const DistributedBatch& batch, Tensors columns, const Divisors& by,
                               Tally& tally) {
  const Goals& goals = compiled_.goals;
  const auto host = host_batch(std::move(columns), model_.num_inputs, goals, options_.class_weight);
  const auto there = device_batch(replica, host->parts);
  std::vector<double> scales;
  for (size_t i = 0; i < goals.size(); ++i)
    scales.push_back(by.scale(goals, i, host->parts.targets[i]));
  const TimedEvent timed("train.forward", {"replica", int64_t{replica.rank()}});
  const Tensors outputs = compiled_.outputs(forward, there->parts.inputs);
  const Tensors losses = losses_on_device(goals, outputs, host->parts, there->parts);
  at::Tensor loss = scaled_loss(goals, losses, there->parts.weights, scales);
  if (batch.local_size(replica) > 0 && !loss.requires_grad()) throw_without_graph();
  if (leaves_bad_steps_out()) compiled_.optimizer.leave_out_if(replica, any_not_finite(losses));
  expect_figures(replica, epoch, batch, host, losses, outputs, tally);
  return loss;
}

// What the host does of a step comes before it, since the device makes most steps by itself: the
// targets are looked at by the shapes of outputs that were there before.
void Fit::step_as_graph(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                        const DistributedBatch& batch, Tensors columns, Tally& tally) {
  const Goals& goals = compiled_.goals;
  const auto host = host_batch(std::move(columns), model_.num_inputs, goals, options_.class_weight);
  const auto there = device_batch(replica, host->parts);
  const bool weighted = there->parts.weights.defined();
  Tensors inputs = there->columns;
  if (!weighted) inputs.pop_back();
  Tensors& shapes = shapes_[batch.local_size(replica)];
  for (size_t i = 0; i < goals.size() && !shapes.empty(); ++i)
    goals[i].loss.kernel().check_targets(goals[i].output(shapes), host->parts.targets[i]);
  const TimedEvent timed("train.step", {"replica", int64_t{replica.rank()}});
  const Tensors made =
      compiled_.optimizer.minimize(replica, inputs, [&](at::TensorList in) -> StepLoss {
        const size_t first = host->parts.inputs.size();
        const BatchParts parts{.inputs = in.slice(0, first),
                               .targets = in.slice(first, goals.size()),
                               .weights = weighted ? in.back() : at::Tensor()};
        const Tensors outputs = compiled_.outputs(forward, parts.inputs);
        shapes.clear();
        for (const at::Tensor& output : outputs)
          shapes.push_back(at::empty(output.sizes(), output.options().device(at::kMeta)));
        Tensors all = losses_on_device(goals, outputs, host->parts, parts);
        const at::Tensor loss =
            scaled_loss(goals, all, parts.weights, 1.0 / static_cast<double>(batch.group_size(1)));
        if (!loss.requires_grad()) throw_without_graph();
        if (leaves_bad_steps_out()) compiled_.optimizer.leave_out_if(replica, any_not_finite(all));
        all.insert(all.end(), outputs.begin(), outputs.end());
        return {.loss = loss, .outputs = std::move(all)};
      });
  const auto split = made.begin() + std::ssize(goals);
  expect_figures(replica, epoch, batch, host, {made.begin(), split}, {split, made.end()}, tally);
}

void Fit::expect_figures(const ReplicaContext& replica, const Epoch& epoch,
                         const DistributedBatch& batch, std::shared_ptr<const OwnBatch> host,
                         const Tensors& losses, const Tensors& outputs, Tally& tally) {
  tally.expect(batch.step() / options_.accumulate);
  read_later(tally.late, compiled_.goals, std::move(host), losses, outputs,
             [this, replica, &epoch, batch, &tally](Figures figures) {
               read_figures(replica, epoch, batch, std::move(figures), tally);
             });
}

// Of the first bad step each replica says what it has seen, also where it has heard of the step
// from another before its own figures came.
bool Fit::says_what_is_bad(const ReplicaContext& replica, const DistributedBatch& batch,
                           const Totals& totals) const {
  const int64_t step = batch.step() / options_.accumulate;
  if (totals.bad_step < 0 || step < totals.bad_step) return true;
  return step == totals.bad_step && not_finite_[static_cast<size_t>(replica.local_rank())].empty();
}

void Fit::read_figures(ReplicaContext replica, const Epoch& epoch, const DistributedBatch& batch,
                       Figures figures, Tally& tally) {
  if (says_what_is_bad(replica, batch, tally.totals) && !figures.finite(compiled_.goals))
    found_not_finite(replica, epoch, batch, {figures.batch->parts, figures.outputs, figures.losses},
                     tally.totals);
  tally.come([this, replica, &epoch, batch, figures = std::move(figures), &tally] {
    at_place(replica, epoch, batch, [&] { figures.add_to(tally.totals, compiled_.goals); });
  });
}

void Fit::be_slow(const Epoch& epoch, int64_t step, TimePoint begin) const {
  if (!options_.slow) return;
  const uint64_t bits =
      random_key(seed_, RandomPurpose::test,
                 {static_cast<uint64_t>(epoch.number), static_cast<uint64_t>(step)});
  if (uniform_double(bits) >= options_.slow->probability) return;
  // Backward, which is still to come, takes about twice as long as forward.
  std::this_thread::sleep_for(3 * (options_.slow->factor - 1) * (Clock::now() - begin));
}

int Fit::asked_to_end() const {
  const int signal = stop_requested();
  const bool late =
      options_.stop_after.count() > 0 && Clock::now() - fit_begin_ >= options_.stop_after;
  return signal == 0 && late ? SIGTERM : signal;
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
  return epoch_images_ + samples_of(epoch, step);
}

// Parts are replicas, however many batches an update has.
void Fit::measure_noise(const Epoch& epoch, int64_t step) {
  const World& world = *epoch.world;
  const int64_t first = step * options_.accumulate;
  const int64_t end = std::min(first + options_.accumulate, epoch.data->num_batches());
  std::vector<int64_t> samples(static_cast<size_t>(world.num_replicas()), 0);
  for (int64_t number = first; number < end; ++number)
    for (int rank = 0; rank < world.num_replicas(); ++rank)
      samples[static_cast<size_t>(rank)] +=
          share_of(epoch.data->batch_size(number), world, rank).size();
  noise_->add(compiled_.optimizer.updater().parts().meter->last_squares(), samples);
}

void Fit::stepped(const Epoch& epoch, int64_t step, const Totals& totals) {
  if (noise_) measure_noise(epoch, step);
  const TimePoint now = Clock::now();
  const int64_t samples = samples_of(epoch, step);
  emit("train.step", {{"step", step},
                      {"samples", samples},
                      {"us", std::chrono::duration<double, std::micro>(now - last_).count()}});
  history_.step_ms.push_back(std::chrono::duration<float, std::milli>(now - last_).count());
  last_ = now;
  ++history_.steps;  // of this worker, until all have come to the epoch's end
  epoch_images_ += samples;
  if (progress_->due(now)) {
    progress_->show(step + 1, epoch_images_, means_of(shown(totals), compiled_.goals), now);
  }
}

}  // namespace tutti::detail
