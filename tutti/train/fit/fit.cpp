#include "tutti/train/fit/detail/fit.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/event.h"
#include "tutti/base/log.h"
#include "tutti/base/random.h"
#include "tutti/base/stop.h"
#include "tutti/cluster/join/join.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/sample_context.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/located.h"

namespace tutti {

using detail::Totals;

namespace {

// What callbacks see after an epoch.
std::vector<std::string> watched(const detail::Goals& goals, bool validation) {
  std::vector<std::string> names = quantities_of(goals);
  const size_t trained = names.size();
  for (size_t i = 0; validation && i < trained; ++i) names.push_back("val_" + names[i]);
  return names;
}

// Those of History.
std::vector<std::string> columns_of(std::vector<std::string> quantities) {
  quantities.front() = "train_loss";
  quantities.insert(quantities.end(), {"seconds", "images_per_second"});
  return quantities;
}

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t number_of_next_fit() {
  static std::atomic<int64_t> begun{0};
  return ++begun;
}

bool computes_alone(const World& world) { return world.size == 1 || world.in_turn(); }

}  // namespace

namespace detail {

Fit::Fit(Model::State& model, data::Dataset train, FitOptions options)
    : model_(model),
      compiled_(model.require_compiled("fit")),
      train_(std::move(train)),
      options_(std::move(options)),
      seed_(options_.seed.value_or(model.strategy.options().seed)),
      meets_(nn::meets_in_forward(*model.modules.module(0))),
      shows_(model.strategy.world().chief),
      epoch_length_(options_.steps_per_epoch > 0
                        ? options_.steps_per_epoch
                        : updates_of(train_.num_batches(), options_.accumulate)),
      cores_(computes_alone(model.strategy.world()) ? model.strategy.options().threads_per_replica
                                                    : 1) {
  compiled_.optimizer.forget_accumulated();  // an earlier fit() may have ended in an error
  speak(shows_);
  const auto quantities = watched(compiled_.goals, options_.validation.has_value());
  history_.columns = columns_of(quantities);
  ps::Client* const client = compiled_.optimizer.updater().client();
  if (client != nullptr && !client->spec().staleness.synchronous()) leases_ = client;
  if (leases_ != nullptr && options_.initial_epoch > 0)
    throw UsageError(
        "fit: initial_epoch: workers are not in step (--staleness), the servers count the epochs");
  if (leases_ != nullptr && options_.accumulate > 1)
    throw UsageError(
        "fit: accumulate: workers are not in step (--staleness), each batch is an update; use a "
        "larger batch");
  drops_ = client != nullptr && client->spec().drop_slowest > 0;
  const bool together = leases_ == nullptr && !drops_ && !model.strategy.world().apart;
  callbacks_.emplace(model_, options_.callbacks, options_.epochs, quantities, together);
  take_up_checkpoints();
  // The first fit() of a program goes on where the job was; later ones are trainings of their own.
  if (client != nullptr && client->first_step() == compiled_.optimizer.version())
    begin_ = client->first_step();
}

void Fit::speak(bool shows) {
  shows_ = shows;
  progress_.emplace(shows ? static_cast<Verbose>(options_.verbose) : Verbose::silent,
                    options_.epochs);
}

History Fit::run() {
  number_ = number_of_next_fit();
  if (callbacks_->together() && !model_.strategy.world().one_process())
    require_same_fit(model_.strategy, fit_words(compiled_, train_, options_, seed_));
  callbacks_->train_begin();
  const int64_t first = go_on();
  for (int64_t number = first; number < options_.epochs && !callbacks_->ends() && !ended_;
       ++number) {
    if (options_.max_steps > 0 && history_.steps >= options_.max_steps) break;
    const TimePoint begin = Clock::now();
    Epoch epoch{number, compiled_.optimizer.version(), 0,
                std::make_shared<const data::Epoch>(train_.epoch({.epoch = number, .seed = seed_})),
                model_.strategy.world()};
    epoch.steps = epoch_length_;
    if (options_.initial_epoch > 0)  // also where another process had the epochs before
      epoch.first_update = std::max(epoch.first_update, number * epoch_length_);
    if (leases_ != nullptr) epoch.first_update = number * epoch.steps;
    if (resumed_) {
      epoch.first_step = resumed_->manifest.step_in_epoch;
      epoch.first_update = resumed_->manifest.version - epoch.first_step;
    }
    if (options_.max_steps > 0)
      epoch.steps = std::min(epoch.steps, options_.max_steps - history_.steps + epoch.first_step);
    if (begin_ > history_.steps) {
      epoch.first_step = std::min(epoch.steps, begin_ - history_.steps);
      epoch.first_update -= epoch.first_step;
      history_.steps += epoch.first_step;
      // Who has come again at the end of an epoch meets the others there.
      const bool meets = epoch.world.apart && history_.steps == begin_;
      if (epoch.first_step == epoch.steps && !meets) continue;
    }
    if (epoch.first_step > 0 && resumed_)
      callbacks_->epoch_goes_on(number, epoch.steps, epoch.first_step);
    else
      callbacks_->epoch_begin(number, epoch.steps);
    epoch_begin_ = last_ = begin;
    steps_before_ = history_.steps - (resumed_ ? epoch.first_step : 0);
    epoch_images_ = 0;
    progress_->begin_epoch(number, epoch.steps, begin);
    run_epoch(std::move(epoch));
  }
  if (checkpoints_) {
    checkpoints_->end();
    if (const std::string words = checkpoints_->summary(); !words.empty()) progress_->say(words);
  }
  if (history_.rows.empty() && begin_ > 0)
    throw UsageError(fmt::format(
        "fit: all that was asked for ({} epochs, {} steps) was done before the snapshot that this "
        "job goes on from; ask for more",
        options_.epochs, history_.steps));
  callbacks_->train_end(last_values_);
  history_.lost = callbacks_->lost();
  return std::move(history_);
}

Totals Fit::run_batch() {
  if (leases_ != nullptr || drops_)
    throw UsageError(
        "train_on_batch: workers are not in step (--staleness, --drop-slowest), so that none can "
        "wait for the others' parts of a batch; use fit()");
  model_.modules.train(true);
  last_ = Clock::now();
  std::vector<Totals> each;
  return train_epoch(
      {0, compiled_.optimizer.version(), 1,
       std::make_shared<const data::Epoch>(train_.epoch({.seed = seed_})), model_.strategy.world()},
      each);
}

void Fit::run_epoch(Epoch epoch) {
  const TimePoint begin = last_;
  model_.modules.train(true);
  std::vector<Totals> each;
  const Totals all = train_epoch(epoch, each);
  if (lease_.past || all.samples == 0) return;
  if (each.empty() || each[0].bad_step < 0) look_at_parameters(epoch);
  if (epoch.world.apart) {
    const bool shows = model_.strategy.those_here().chief;
    if (shows != shows_) {
      speak(shows);
      callbacks_->be_chief(shows);
      progress_->begin_epoch(epoch.number, epoch.steps, begin);
    }
  }
  const double seconds = seconds_since(begin);
  history_.train_seconds += seconds;
  history_.images += epoch_images_;

  NamedValues values = means_of(all, compiled_.goals);
  const bool validates = options_.validation && (epoch.number + 1) % options_.validation_freq == 0;
  if (validates && (leases_ == nullptr || epoch.world.chief)) {
    const TimePoint validation_begin = Clock::now();
    const Scores scores = validate(epoch, each);
    history_.validation_seconds += seconds_since(validation_begin);
    values.emplace_back("val_loss", scores.loss);
    for (const auto& [name, value] : scores.metrics) values.emplace_back("val_" + name, value);
  }
  const double rate = seconds > 0 ? static_cast<double>(epoch_images_) / seconds : 0;
  std::vector<double> row;
  for (const auto& [name, value] : values) row.push_back(value);
  row.resize(history_.columns.size() - 2, std::nan(""));  // not validated
  row.push_back(seconds);
  row.push_back(rate);
  if (history_.rows.empty()) history_.first_epoch = epoch.number;
  history_.rows.push_back(std::move(row));
  progress_->end_epoch(values, seconds, rate);
  last_values_ = values;
  callbacks_->epoch_end(values);
  if (!ended_) save_after(epoch);
}

Totals Fit::train_epoch(const Epoch& epoch, std::vector<Totals>& each) {
  not_finite_.assign(static_cast<size_t>(epoch.world.local), "");
  if (leases_ != nullptr) return workers_by_lease(epoch);
  const bool in_turn = epoch.world.in_turn() && epoch.world.size > 1;
  const auto trained = in_turn ? replicas_in_turn(epoch) : replicas_at_once(epoch);
  each = trained.values();
  raise(epoch, each[0]);
  if (drops_) history_.steps = epoch.first_update + epoch.steps;
  return sum_over_world(model_.strategy, compiled_.goals, trained);
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

PerReplica<Totals> Fit::replicas_at_once(const Epoch& epoch) {
  std::vector<Totals> each = first_totals(epoch);
  const auto steps = [&](int64_t begin, int64_t end) {
    model_.strategy.run([&](ReplicaContext& replica) {
      const Forward& forward = model_.forward(replica.local_rank());
      Totals& kept = each[static_cast<size_t>(replica.local_rank())];
      Totals totals = std::move(kept);  // the replicas' own lie side by side in memory
      for (int64_t s = begin; s < end && !ends(totals); s = step_after(epoch, s)) {
        const int64_t before = compiled_.optimizer.version();
        step(replica, forward, epoch, s, totals);
        if (leaves_bad_steps_out() && compiled_.optimizer.version() == before) {
          if (totals.bad_step < 0) totals.bad_step = s;  // another replica's loss
          break;
        }
        after_step(replica, epoch, s, totals);
        agree(replica, epoch, s, totals);
        if (replica.local_rank() == 0) stepped(epoch, s, totals);
      }
      kept = std::move(totals);
    });
  };
  // One run() for the whole epoch: replicas meet in the updater, nobody wakes or joins threads. But
  // run() looks for mistakes at its end, and those should not cost an epoch. And between two steps
  // of a checkpoint nobody computes.
  for (int64_t done = epoch.first_step; done < epoch.steps && !ends(each[0]);) {
    const int64_t until = done + (looked_at_ ? steps_until_pause(epoch, done) : 1);
    steps(done, until);
    looked_at_ = true;
    done = until;
    save_between(epoch, each);
  }
  return {std::move(each), epoch.world.first_rank};
}

PerReplica<Totals> Fit::replicas_in_turn(const Epoch& epoch) {
  std::vector<Totals> each = first_totals(epoch);
  for (int64_t s = epoch.first_step; s < epoch.steps && !ends(each[0]); ++s) {
    model_.strategy.run([&](ReplicaContext& replica) {
      const int local = replica.local_rank();
      step(replica, model_.forward(local), epoch, s, each[static_cast<size_t>(local)]);
    });
    for (const auto& totals : each) {
      if (each[0].bad_step < 0) each[0].bad_step = totals.bad_step;
    }
    if (leaves_out(each[0])) break;
    each[0].signal = asked_to_end();
    if (callbacks_->any()) {
      callbacks_->step_end(s + 1, history_.steps + 1, images_after(epoch, s), each[0]);
      each[0].stop = callbacks_->wants();
    }
    stepped(epoch, s, each[0]);
    save_between(epoch, each);
  }
  return {std::move(each), epoch.world.first_rank};
}

void Fit::step(ReplicaContext& replica, const Forward& forward, const Epoch& epoch, int64_t step,
               Totals& totals) {
  if (replica.local_rank() == 0) report_step(compiled_.optimizer.version() + 1, number_);
  if (compiled_.rate && replica.local_rank() == 0)
    compiled_.optimizer.set_learning_rate((*compiled_.rate)(compiled_.optimizer.version()));
  const int64_t first = step * options_.accumulate;
  const int64_t end = std::min(first + options_.accumulate, epoch.data->num_batches());
  for (int64_t number = first; number < end; ++number)
    train_on(replica, forward, epoch, {epoch.data, number, epoch.world}, totals);
}

// One batch; what comes before the last one of a step is not communicated.
void Fit::train_on(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                   const DistributedBatch& batch, Totals& totals) {
  const int64_t step = batch.step() / options_.accumulate;
  const bool updates = batch.ends_group(options_.accumulate);
  const int64_t samples = batch.local_size(replica);
  if (samples == 0 && !meets_) {
    if (updates && leaves_out(totals))
      compiled_.optimizer.leave_out(replica);
    else if (updates)
      compiled_.optimizer.abstain(replica);
    return;
  }
  if (options_.slow) compiled_.optimizer.updater().complete();  // waiting is not computing
  const TimePoint begin = Clock::now();
  // Rows of the step, however many batches it has: dropout is that of one large batch.
  const nn::SampleContext place(
      {.seed = seed_,
       .step = epoch.first_update + step,
       .first_row = batch.group_row(options_.accumulate) + batch.first_row(replica)});
  at::Tensor loss;
  try {
    const auto columns = batch.columns(replica);
    cores_.begin();
    loss = loss_of(replica, forward, epoch, batch, columns, totals);
  } catch (const RowError& error) {
    throw error.at(place_words(replica, epoch, step), rows_of(*epoch.data, batch, replica));
  } catch (const std::exception&) {
    std::rethrow_exception(located(place_words(replica, epoch, step)));
  }
  if (epoch.world.in_turn() && totals.bad_step >= 0 && options_.on_nan == OnNan::stop)
    raise(epoch, totals);  // the update is still to come
  be_slow(epoch, batch.step(), begin);
  if (updates && leaves_out(totals))
    compiled_.optimizer.leave_out(replica, loss);
  else if (updates)
    compiled_.optimizer.minimize(replica, loss);
  else
    compiled_.optimizer.accumulate(replica, loss);
  cores_.end();
}

at::Tensor Fit::loss_of(ReplicaContext& replica, const Forward& forward, const Epoch& epoch,
                        const DistributedBatch& batch, at::TensorList columns, Totals& totals) {
  const BatchParts parts =
      parts_of(columns, model_.num_inputs, compiled_.goals, options_.class_weight);
  Tensors outputs;
  const at::Tensor loss = [&] {
    const TimedEvent timed("train.forward", {"replica", int64_t{replica.rank()}});
    outputs = compiled_.outputs(forward, parts.inputs);
    return totals.add_losses(compiled_.goals, outputs, parts,
                             1.0 / static_cast<double>(batch.group_size(options_.accumulate)));
  }();
  const int64_t samples = batch.local_size(replica);
  if (samples > 0 && !loss.requires_grad()) throw_without_graph();
  totals.samples += samples;
  if (samples > 0) totals.add_metrics(compiled_.goals, outputs, parts);
  if (!std::isfinite(totals.loss(compiled_.goals)) && totals.bad_step < 0)
    found_not_finite(replica, epoch, batch, parts, outputs, totals);
  return loss;
}

int Fit::asked_to_end() const {
  const int signal = stop_requested();
  const bool late =
      options_.stop_after.count() > 0 && Clock::now() - fit_begin_ >= options_.stop_after;
  return signal == 0 && late ? SIGTERM : signal;
}

int64_t Fit::step_after(const Epoch& epoch, int64_t step) const {
  const int64_t next = step + 1;
  return drops_ ? std::max(next, compiled_.optimizer.version() - epoch.first_update) : next;
}

// What the chief's callbacks decide here is agreed on in the same step.
void Fit::after_step(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals) {
  if (!callbacks_->any() || replica.local_rank() != 0) return;
  callbacks_->step_end(step + 1, history_.steps + 1, images_after(epoch, step), totals);
  totals.stop = callbacks_->wants();
  // Where workers do not meet in every step this error ends the worker, as any does.
  if (totals.stop == Stop::failed && !callbacks_->together()) callbacks_->rethrow();
}

void Fit::agree(ReplicaContext& replica, const Epoch& epoch, int64_t step, Totals& totals) {
  totals.signal = asked_to_end();
  const int together = epoch.world.apart ? epoch.world.local : epoch.world.size;
  if (together == 1 || drops_) return;  // nobody waits for the slowest, here neither
  // Every replica must end at the same step. They have just met in the updater, so this costs no
  // waiting: 0.1 to 0.2 us.
  std::array<double, 3> flags{static_cast<double>(totals.signal), totals.bad_step >= 0 ? 1.0 : 0.0,
                              static_cast<double>(totals.stop)};
  replica.group().all_reduce_now(span_of(std::span<double>(flags)), ReduceOp::max,
                                 epoch.world.time_limit);
  totals.signal = static_cast<int>(flags[0]);
  if (flags[1] > 0 && totals.bad_step < 0) totals.bad_step = step;
  totals.stop = static_cast<Stop>(flags[2]);
}

int64_t Fit::images_after(const Epoch& epoch, int64_t step) const {
  const DistributedBatch first(epoch.data, step * options_.accumulate, epoch.world);
  return epoch_images_ + first.group_size(options_.accumulate);
}

void Fit::stepped(const Epoch& epoch, int64_t step, const Totals& totals) {
  const TimePoint now = Clock::now();
  emit("train.step",
       {{"step", step}, {"us", std::chrono::duration<double, std::micro>(now - last_).count()}});
  history_.step_ms.push_back(std::chrono::duration<float, std::milli>(now - last_).count());
  last_ = now;
  ++history_.steps;  // of this worker, until all have come to the epoch's end
  epoch_images_ = images_after(epoch, step);
  if (progress_->due(now)) {
    progress_->show(step + 1, epoch_images_, means_of(totals, compiled_.goals), now);
  }
}

Totals train_on_batch(Model::State& model, const data::Dataset& data, FitOptions options) {
  return Fit(model, data, std::move(options)).run_batch();
}

}  // namespace detail

History Model::fit(const data::Dataset& train, FitOptions options) {
  const data::Dataset trained = state_->split_off_validation(train, options);
  state_->check_fit(trained, options);
  return detail::Fit(*state_, trained, std::move(options)).run();
}

}  // namespace tutti
