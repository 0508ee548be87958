// What fit() says of a step that went wrong: looked for only once something has.

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/queues/out_of_memory.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/losses/detail/samples.h"
#include "tutti/train/model/detail/agreement.h"
#include "tutti/train/model/detail/finite.h"
#include "tutti/train/model/weights.h"

namespace tutti::detail {
namespace {

std::string signal_words(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

/// As above, with the sample; `rows` are those of the samples in the dataset. "": all are finite.
std::string bad_sample(const std::string& what, const at::Tensor& values,
                       std::span<const int64_t> rows) {
  if (all_finite(values)) return "";
  if (values.dim() < 1 || values.size(0) != std::ssize(rows))
    return fmt::format("{} has {}", what, bad_element(values));
  const at::Tensor bad = values.reshape({values.size(0), -1}).isfinite().all(1).logical_not();
  const auto row = bad.nonzero()[0][0].item<int64_t>();
  return fmt::format("{} of sample {} of the dataset has {}", what, rows[static_cast<size_t>(row)],
                     bad_element(values[row]));
}

std::string bad_parameter(const torch::nn::Module& module) {
  return what_is_not_finite({.parameters = unique_parameters(module), .buffers = {}});
}

/// "input", or "input 2" of several.
std::string numbered(const char* what, size_t number, size_t count) {
  return count == 1 ? what : fmt::format("{} {}", what, number + 1);
}

}  // namespace

std::string Fit::place_words(const ReplicaContext& replica, const Epoch& epoch,
                             int64_t step) const {
  return fmt::format("fit, epoch {} of {}, step {} of {}, replica {}", epoch.number + 1,
                     options_.epochs, step + 1, epoch.steps, replica.rank());
}

void Fit::throw_without_graph() {
  throw UsageError(
      "the loss does not depend on any parameter that is trained, so that nothing would be: a "
      "detach(), an .item() or a NoGradGuard cuts it off, in the model's forward, in the loss or "
      "around fit()");
}

/// The first tensor that is not finite in the order in which they were computed.
std::string Fit::first_not_finite(const ReplicaContext& replica, const Epoch& epoch,
                                  const DistributedBatch& batch, const Seen& seen) const {
  const at::NoGradGuard no_grad;
  const auto rows = rows_of(*epoch.data, batch, replica);
  const Goals& goals = compiled_.goals;
  const auto& [parts, outputs, losses] = seen;
  const bool late = !losses.empty();
  std::string found;
  const auto look = [&](const char* what, size_t number, size_t count, const at::Tensor& values) {
    if (found.empty()) found = bad_sample(numbered(what, number, count), values, rows);
  };
  for (size_t i = 0; i < parts.inputs.size(); ++i)
    look("input", i, parts.inputs.size(), parts.inputs[i]);
  for (size_t i = 0; i < goals.size(); ++i) look("target", i, goals.size(), parts.targets[i]);
  // Late they may be spoilt by what was not finite, unless that was left out.
  if (found.empty() && (!late || leaves_bad_steps_out()))
    found = bad_parameter(*model_.modules.module(replica.local_rank()));
  for (size_t i = 0; i < outputs.size(); ++i) look("output", i, outputs.size(), outputs[i]);
  for (size_t i = 0; i < goals.size() && found.empty(); ++i)
    look("loss", i, goals.size(),
         late ? losses[i]
              : goals[i].loss.kernel().per_sample(goals[i].output(outputs), parts.targets[i]));
  if (found.empty()) found = "the sum of all losses is the first";
  return fmt::format("replica {}: {}", replica.rank(), found);
}

// Replicas that take turns end before the update. Others leave it out, all of them, as they learn
// where they meet in it (Optimizer::leave_out): to meet before would cost every step. Devices leave
// out that step and those that are queued behind it (Optimizer::leave_out_if) until the host knows.
void Fit::found_not_finite(const ReplicaContext& replica, const Epoch& epoch,
                           const DistributedBatch& batch, const Seen& seen, Totals& totals) {
  totals.bad_step = batch.step() / options_.accumulate;
  not_finite_.first[static_cast<size_t>(replica.local_rank())] =
      first_not_finite(replica, epoch, batch, seen);
}

void Fit::look_at_loss(const BatchOfStep& of, const Seen& seen, Totals& totals) {
  if (totals.bad_step < 0 && !std::isfinite(totals.loss(compiled_.goals)))
    found_not_finite(of.replica, of.epoch, of.batch, seen, totals);
}

// Of the first bad step each replica says what it has seen, also where it has heard of the step
// from another before its own figures came.
bool Fit::says_what_is_bad(const ReplicaContext& replica, const DistributedBatch& batch,
                           const Totals& totals) const {
  const int64_t step = batch.step() / options_.accumulate;
  if (totals.bad_step < 0 || step < totals.bad_step) return true;
  return step == totals.bad_step &&
         not_finite_.first[static_cast<size_t>(replica.local_rank())].empty();
}

void Fit::raise_out_of_memory(const ReplicaContext& replica, const Epoch& epoch,
                              const DistributedBatch& batch,
                              const c10::OutOfMemoryError& error) const {
  throw_out_of_memory(replica.queue(), error,
                      {.where = fmt::format("in step {} of {}, epoch {} of {}",
                                            batch.step() / options_.accumulate + 1, epoch.steps,
                                            epoch.number + 1, options_.epochs),
                       .global_samples = batch.global_size(),
                       .trains = true});
}

void Fit::raise(const Epoch& epoch, const Totals& totals) {
  if (totals.stop == Stop::failed) callbacks_->rethrow();
  if (totals.bad_step >= 0) raise_not_finite(epoch, totals.bad_step);
  if (totals.signal != 0)
    throw Interrupted(totals.signal,
                      fmt::format("fit: asked to end by {} in epoch {} of {}, after {} steps",
                                  signal_words(totals.signal), epoch.number + 1, options_.epochs,
                                  history_.steps));
}

// Of the first worker that has something to say. Collective over workers.
static std::string first_said(const Membership& members, const std::string& own) {
  for (const auto& [worker, words] : members.words_of_all(own))
    if (!words.empty()) return words;
  return {};
}

void Fit::raise_not_finite(const Epoch& epoch, int64_t step) {
  const auto found = std::ranges::find_if(not_finite_.first,
                                          [](const std::string& words) { return !words.empty(); });
  std::string first = found == not_finite_.first.end() ? "" : *found;
  if (callbacks_->together()) first = first_said(model_.strategy.membership(), first);
  const std::string words = fmt::format(
      "fit: the loss is not finite (NaN or infinite) since epoch {} of {}, step {} of {}; {}",
      epoch.number + 1, options_.epochs, step + 1, epoch.steps, first);
  not_finite_.ended = options_.on_nan == OnNan::end;
  if (!not_finite_.ended) return complain(words);
  log(LogLevel::warning, "{}\n  the training ends there, with the weights before that step", words);
}

// Each rank of a mesh has a part of the parameters.
std::string Fit::bad_on_any_rank() const {
  std::string found;
  for (int local = 0; local < model_.modules.size() && found.empty(); ++local)
    found = bad_parameter(*model_.modules.module(local));
  return first_said(model_.strategy.membership(), found);
}

// A gradient may be bad where the loss is not. The next step's loss shows it; after the last one
// of an epoch nothing else does.
void Fit::look_at_parameters(const Epoch& epoch) {
  // Servers look at each gradient.
  if (compiled_.optimizer.updater().parts().client != nullptr) return;
  std::string found = bad_parameter(*model_.modules.module(0));
  if (model_.modules.whole() != nullptr) found = bad_on_any_rank();
  if (found.empty()) return;
  complain(fmt::format(
      "fit: after epoch {} of {}, whose losses were finite, {}: a gradient of its last step was "
      "not finite, or the update too large",
      epoch.number + 1, options_.epochs, found));
}

void Fit::complain(const std::string& what) const {
  if (options_.on_nan != OnNan::go_on)
    throw Error(what +
                "\n  try a smaller learning rate, look for NaN in the data, or have it go on: "
                "`on_nan` (--nan ignore)");
  log_once("fit: not finite", LogLevel::warning, "{}; going on, as told", what);
}

}  // namespace tutti::detail
