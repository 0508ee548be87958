#include "tutti/train/callback_runner.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <array>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/sync/tensors.h"

namespace tutti {

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
                               bool in_step)
    : model_(model),
      callbacks_(callbacks),
      epochs_(epochs),
      in_step_(in_step),
      chief_(model.strategy.world().chief) {
  for (const auto& callback : callbacks_)
    if (!callback) throw UsageError("fit: callbacks: one of them is null");
}

// ---- what callbacks see ----

const NamedValues& CallbackRunner::values() {
  if (totals_ != nullptr) {
    values_ = means_of(*totals_, model_.compiled->metrics, "");
    totals_ = nullptr;
  }
  return values_;
}

double CallbackRunner::learning_rate() const { return model_.compiled->optimizer.learning_rate(); }

void CallbackRunner::stop(std::string why) {
  require_in_step("stop");
  log(LogLevel::info, "fit: callback {} ends the training after {} steps: {}", running_, step_,
      why);
  stops_ = true;
}

// Rank 0's counts, and this is its worker; others are told after the epoch.
void CallbackRunner::set_learning_rate(double learning_rate) {
  require_in_step("set_learning_rate");
  if (model_.compiled->rate)
    throw UsageError(fmt::format("set_learning_rate: compile() has the schedule \"{}\" for that",
                                 model_.compiled->rate->name()));
  model_.compiled->optimizer.set_learning_rate(learning_rate);
}

void CallbackRunner::save(std::filesystem::path path) {
  require_in_step("save");
  saves_.push_back(std::move(path));
}

void CallbackRunner::keep_weights() {
  require_in_step("keep_weights");
  if (model_.compiled->optimizer.updater().client() != nullptr)
    throw UsageError(
        "weights that are on parameter servers cannot be put back; save them, and load them in a "
        "job of its own");
  keeps_ = true;
}

void CallbackRunner::put_back_weights() { puts_back_ = true; }

void CallbackRunner::require_in_step(const char* what) const {
  if (in_step_) return;
  throw UsageError(fmt::format(
      "{}: workers are not in step (--staleness), so one cannot decide for the others", what));
}

// ---- what fit() calls ----

void CallbackRunner::call(Hook hook) noexcept {
  if (!chief_ || failure_) return;
  for (const auto& callback : callbacks_) {
    running_ = callback->name();
    try {
      ((*callback).*hook)(*this);
    } catch (const UsageError& error) {
      failure_ = std::make_exception_ptr(
          UsageError(fmt::format("callback {}: {}", running_, error.what())));
      return;
    } catch (const std::exception& error) {
      failure_ =
          std::make_exception_ptr(Error(fmt::format("callback {}: {}", running_, error.what())));
      return;
    }
  }
}

void CallbackRunner::train_begin() {
  if (!any()) return;
  call(&Callback::on_train_begin);
  carry_out();
}

void CallbackRunner::epoch_begin(int64_t epoch) {
  epoch_ = epoch;
  if (!any()) return;
  call(&Callback::on_epoch_begin);
  carry_out();
}

void CallbackRunner::step_end(int64_t step, const Totals& totals) {
  step_ = step;
  totals_ = &totals;
  call(&Callback::on_step_end);
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

// Everywhere what the chief's callbacks have decided since the last time. Collective over workers.
void CallbackRunner::carry_out() {
  if (in_step_) {
    const World& world = model_.strategy.world();
    std::vector<std::array<double, 6>> each(static_cast<size_t>(world.local));
    if (chief_)
      each[0] = {failure_ ? 1.0 : 0.0,
                 stops_ ? 1.0 : 0.0,
                 keeps_ ? 1.0 : 0.0,
                 puts_back_ ? 1.0 : 0.0,
                 static_cast<double>(saves_.size()),
                 learning_rate()};
    const auto all = model_.strategy.reduce(
        ReduceOp::sum, PerReplica<std::array<double, 6>>(std::move(each), world.first_rank));
    if (all[0] > 0) rethrow();
    stops_ = all[1] > 0;
    keeps_ = all[2] > 0;
    puts_back_ = all[3] > 0;
    saves_.resize(static_cast<size_t>(all[4]), "the chief's file");
    if (!chief_) model_.compiled->optimizer.set_learning_rate(all[5]);
  }
  if (failure_) rethrow();
  if (keeps_) copy_weights();
  if (puts_back_) write_weights();
  for (const auto& path : saves_) model_.save(path);
  keeps_ = puts_back_ = false;
  saves_.clear();
}

void CallbackRunner::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
  throw Error("fit: a callback failed on the chief's worker; its own message says why");
}

void CallbackRunner::copy_weights() {
  model_.require_whole();
  kept_.clear();
  const auto keep = [&](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) kept_.push_back(tensor.detach().clone());
  };
  keep(unique_parameters(*model_.modules.module(0)));
  for (int local = 0; local < model_.modules.size(); ++local)
    keep(unique_buffers(*model_.modules.module(local)));
}

void CallbackRunner::write_weights() {
  if (kept_.empty()) return;
  const at::NoGradGuard no_grad;
  size_t next = 0;
  for (auto& [name, parameter] : unique_parameters(*model_.modules.module(0)))
    at::Tensor(parameter.detach()).copy_(kept_[next++]);
  for (int local = 0; local < model_.modules.size(); ++local) {
    torch::nn::Module& module = *model_.modules.module(local);
    for (auto& [name, buffer] : unique_buffers(module)) buffer.copy_(kept_[next++]);
    if (local > 0) {
      const NamedTensors first = unique_parameters(*model_.modules.module(0));
      const NamedTensors own = unique_parameters(module);
      for (size_t i = 0; i < own.size(); ++i)
        at::Tensor(own[i].second.detach()).copy_(first[i].second.detach());
    }
  }
}

}  // namespace detail
}  // namespace tutti
