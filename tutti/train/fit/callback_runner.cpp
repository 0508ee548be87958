#include "tutti/train/fit/detail/callback_runner.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/queues/upload.h"
#include "tutti/strategy/modules/whole_model.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/metrics/better.h"
#include "tutti/train/model/detail/located.h"
#include "tutti/train/watch/detail/kept.h"

namespace tutti {

std::unique_ptr<detail::Kept> Callback::kept() { return nullptr; }

std::optional<double> Training::watch(std::string_view name) {
  for (const auto& [known, value] : values())
    if (known == name) return value;
  if (std::ranges::find(quantities(), name) == quantities().end())
    throw UsageError(unknown_quantity(name, quantities()));
  return std::nullopt;
}

double Training::at(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, value] : values()) {
    if (known == name) return value;
    names.push_back(known);
  }
  throw UsageError(unknown_message("quantity", name, names));
}

namespace detail {

CallbackRunner::CallbackRunner(Model::State& model, const Callbacks& callbacks, int64_t epochs,
                               std::vector<std::string> quantities, bool together)
    : model_(model),
      callbacks_(callbacks),
      epochs_(epochs),
      quantities_(std::move(quantities)),
      together_(together),
      chief_(model.strategy.world().chief) {
  for (const auto& callback : callbacks_)
    if (!callback) throw UsageError("fit: callbacks: one of them is null");
}

// ---- what callbacks see ----

const NamedValues& CallbackRunner::values() {
  if (totals_ != nullptr) {
    values_ = means_of(*totals_, model_.compiled->goals);
    totals_ = nullptr;
  }
  return values_;
}

double CallbackRunner::learning_rate() const { return model_.compiled->optimizer.learning_rate(); }

void CallbackRunner::stop(std::string why) {
  require_together("stop");
  if (!chief_) return;
  log(LogLevel::info, "fit: callback {} ends the training after {} steps: {}", running_, step_,
      why);
  stops_ = true;
}

// Rank 0's counts, and this is its worker; others are told after the epoch.
void CallbackRunner::set_learning_rate(double learning_rate) {
  require_together("set_learning_rate");
  if (!chief_) return;
  if (model_.compiled->rate)
    throw UsageError(fmt::format(
        "set_learning_rate: compile() has the schedule \"{}\" for that; leave one of them out",
        model_.compiled->rate->name()));
  model_.compiled->optimizer.set_learning_rate(learning_rate);
}

void CallbackRunner::write(const std::filesystem::path& path, std::string_view text) {
  try {
    write_file_atomically(path, text);
    lost_.erase(path);
  } catch (const WriteError& error) {
    count_lost(path, error);
  }
}

void CallbackRunner::count_lost(const std::filesystem::path& path, const WriteError& error) {
  if (!lost_.contains(path))
    log(LogLevel::warning, "fit, epoch {} of {}: {}; the training goes on without it", epoch_ + 1,
        epochs_, error.what());
  lost_[path] = error.what();
}

std::vector<std::string> CallbackRunner::lost() const {
  std::vector<std::string> words;
  for (const auto& [path, why] : lost_) words.push_back(why);
  return words;
}

void CallbackRunner::save(std::filesystem::path path) {
  require_epoch_end("save");
  require_together("save");
  if (!chief_) return;
  saves_.push_back(std::move(path));
}

void CallbackRunner::keep_weights() {
  require_epoch_end("keep_weights");
  require_together("keep_weights");
  if (!chief_) return;
  if (model_.compiled->optimizer.updater().parts().client != nullptr)
    throw UsageError(
        "weights that are on parameter servers cannot be put back; save them, and load them in a "
        "job of its own");
  if (const SparseTables* tables = model_.compiled->optimizer.tables())
    throw UsageError(fmt::format(
        "keep_weights: rows of embedding table \"{}\" would not be among them; checkpoints "
        "(FitOptions::checkpoints) have them",
        tables->specs().front().name));
  keeps_ = true;
}

void CallbackRunner::put_back_weights() {
  require_epoch_end("put_back_weights");
  puts_back_ = chief_;
}

void CallbackRunner::require_epoch_end(const char* what) const {
  if (!in_step_) return;
  throw UsageError(fmt::format(
      "{}: weights are those of the end of an epoch, not of a step; call it in on_epoch_end, "
      "or have fit() write checkpoints every so many steps (FitOptions::checkpoints)",
      what));
}

void CallbackRunner::require_together(const char* what) const {
  if (together_) return;
  throw UsageError(fmt::format(
      "{}: one worker cannot decide for the others where they do not meet in every step "
      "(--staleness above 0, --drop-slowest, --on-lost-worker continue or wait)",
      what));
}

// ---- what fit() calls ----

void CallbackRunner::call(Hook hook, bool chiefs_alone) {
  if (failure_) return;
  for (const auto& callback : callbacks_) {
    try {
      const bool everywhere = callback->on_every_worker();
      if (everywhere ? chiefs_alone : !chief_) continue;
      running_ = callback->name();
      ((*callback).*hook)(*this);
    } catch (const std::exception&) {
      failure_ = located(place_words());
      return;
    } catch (...) {
      failure_ = std::make_exception_ptr(Error(place_words() + ": an error without words"));
      return;
    }
  }
}

std::string CallbackRunner::place_words() const {
  const std::string callback = fmt::format("callback {}", running_);
  if (epoch_steps_ == 0) return callback;  // before the first epoch
  const std::string step =
      in_step_ ? fmt::format("step {} of {}", epoch_step_ + (begins_step_ ? 1 : 0), epoch_steps_)
               : fmt::format("after {} of {} steps", epoch_step_, epoch_steps_);
  return fmt::format("fit, epoch {} of {}, {}, {}", epoch_ + 1, epochs_, step, callback);
}

void CallbackRunner::be_chief(bool is) {
  const bool begins = is && !chief_;
  chief_ = is;
  if (begins) call(&Callback::on_train_begin, /*chiefs_alone=*/true);
}

void CallbackRunner::train_begin() {
  if (!any()) return;
  call(&Callback::on_train_begin);
  carry_out();
}

void CallbackRunner::epoch_goes_on(int64_t epoch, int64_t steps, int64_t done) {
  epoch_ = epoch;
  epoch_steps_ = steps;
  epoch_step_ = done;
  epoch_samples_ = 0;
}

void CallbackRunner::epoch_begin(int64_t epoch, int64_t steps) {
  epoch_goes_on(epoch, steps, 0);
  if (!any()) return;
  call(&Callback::on_epoch_begin);
  carry_out();
}

void CallbackRunner::step_begin() {
  in_step_ = begins_step_ = true;
  call(&Callback::on_step_begin);
  in_step_ = begins_step_ = false;
}

void CallbackRunner::step_end(int64_t epoch_step, int64_t step, int64_t samples,
                              const Totals& totals) {
  epoch_step_ = epoch_step;
  step_ = step;
  epoch_samples_ = samples;
  totals_ = &totals;
  in_step_ = true;
  call(&Callback::on_step_end);
  in_step_ = false;
  totals_ = nullptr;
}

void CallbackRunner::epoch_end(const NamedValues& values) {
  if (!any()) return;
  values_ = values;
  call(&Callback::on_epoch_end);
  carry_out();
}

void CallbackRunner::train_end(const NamedValues& last) {
  if (!any()) return;
  values_ = last;
  call(&Callback::on_train_end);
  carry_out();
}

// Tells all what the chief's callbacks have decided since the last time, and whether any failed.
void CallbackRunner::exchange() {
  using Words = std::array<double, 6>;
  const World& world = model_.strategy.world();
  std::vector<Words> each(static_cast<size_t>(world.local));
  const auto one = [](bool yes) { return yes ? 1.0 : 0.0; };
  if (chief_)
    each[0] = {0,
               one(stops_),
               one(keeps_),
               one(puts_back_),
               static_cast<double>(saves_.size()),
               learning_rate()};
  each[0][0] = one(failure_ != nullptr);
  const Words all =
      model_.strategy.reduce(ReduceOp::sum, PerReplica<Words>(std::move(each), world.first_rank));
  const auto [failed, stops, keeps, puts_back, saves, rate] = all;
  if (failed > 0) rethrow();
  stops_ = stops > 0;
  keeps_ = keeps > 0;
  puts_back_ = puts_back > 0;
  saves_.resize(static_cast<size_t>(saves), "the chief's file");
  if (!chief_) model_.compiled->optimizer.set_learning_rate(rate);
}

// Everywhere, in the same order. Collective over workers.
void CallbackRunner::carry_out() {
  if (together_) exchange();
  if (failure_) rethrow();
  if (keeps_) copy_weights();
  if (puts_back_) write_weights();
  for (const auto& path : saves_) save_weights(path);
  keeps_ = puts_back_ = false;
  saves_.clear();
}

void CallbackRunner::save_weights(const std::filesystem::path& path) {
  try {
    model_.save(path);
    lost_.erase(path);
  } catch (const WriteError& error) {
    count_lost(path, error);
  } catch (const FailedElsewhere&) {  // the chief's file: it goes on, or ends this worker too
  }
}

void CallbackRunner::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
  throw FailedElsewhere("fit: a callback failed on another worker; its own message says why");
}

// ---- checkpoints ----

namespace {

// What a callback throws there bears its name.
auto named(const Callback& callback, const char* what, auto&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Error(fmt::format("callback {}: {}: {}", callback.name(), what, error.what()));
  }
}

std::string state_of(const Callback& callback) {
  return named(callback, "state()", [&] {
    std::string state = callback.state();
    dump_json(Json(state));  // throws unless it is UTF-8, as a manifest is
    return state;
  });
}

}  // namespace

std::map<std::string, std::string> CallbackRunner::states() const {
  std::map<std::string, std::string> states;
  for (size_t i = 0; chief_ && i < callbacks_.size(); ++i)
    if (std::string state = state_of(*callbacks_[i]); !state.empty())
      states[fmt::format("{} {}", i, callbacks_[i]->name())] = std::move(state);
  return states;
}

void CallbackRunner::restore(const std::map<std::string, std::string>& states, KeptWeights kept,
                             bool ended) {
  stops_ = ended;
  kept_ = std::move(kept);
  size_t found = 0;
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    if (!chief_ && !callbacks_[i]->on_every_worker()) continue;
    const auto state = states.find(fmt::format("{} {}", i, callbacks_[i]->name()));
    if (state == states.end()) continue;
    named(*callbacks_[i], "restore()", [&] { callbacks_[i]->restore(state->second); });
    ++found;
  }
  if (chief_ && found < states.size())
    log(LogLevel::warning,
        "fit: the checkpoint has the state of {} callbacks, of which this training has {}, in that "
        "order",
        states.size(), found);
}

namespace {

NamedTensors copies_of(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
  return tensors;
}

void copy_to(const NamedTensors& from, const NamedTensors& to) {
  for (size_t i = 0; i < to.size(); ++i) copy_queued(to[i].second, from.at(i).second);
}

}  // namespace

void CallbackRunner::copy_weights() {
  model_.require_whole();
  kept_ = {copies_of(model_.parameters()), {}};
  for (int local = 0; local < model_.modules.size(); ++local)
    kept_.buffers.push_back(copies_of(unique_buffers(*model_.modules.module(local))));
}

void CallbackRunner::write_weights() {
  if (kept_.parameters.empty()) return;
  const at::NoGradGuard no_grad;
  const WholeModel* const whole = model_.modules.whole();
  if (whole != nullptr) whole->scatter(kept_.parameters);
  for (int local = 0; local < model_.modules.size(); ++local) {
    if (whole == nullptr)
      copy_to(kept_.parameters, unique_parameters(*model_.modules.module(local)));
    copy_to(kept_.buffers.at(static_cast<size_t>(local)),
            unique_buffers(*model_.modules.module(local)));
  }
  model_.weights_written();
}

}  // namespace detail
}  // namespace tutti
