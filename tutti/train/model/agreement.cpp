// Whether all workers were asked for the same training: compared once, before its first step.
#include "tutti/train/model/detail/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <map>

#include "tutti/exported/module.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/strategy/membership/detail/data_agreement.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/detail/settings.h"

namespace tutti::detail {
namespace {

std::string_view name_of(OnNan on_nan) {
  if (on_nan == OnNan::stop) return "stop";
  return on_nan == OnNan::end ? "end" : "go_on";
}

// Each function here names all fields of what it is about: a new one does not compile until it is
// named too, and then stands in a line, or beside the reason why it does not.

std::string bad_words(const data::LoaderOptions& loader) {
  // How samples are computed ahead is each worker's own: the bytes are the same.
  const auto& [workers, memory, ahead, on_bad, kind] = loader;
  if (!on_bad.replace) return "an error";
  const auto& [at_most] = *on_bad.replace;
  return fmt::format("replaced, at most {} of an epoch", at_most);
}

std::string checkpoint_words(const CheckpointOptions& options) {
  // Each worker's own: grace and disk_limit, of waits in which all agree. Workers that see another
  // folder are told so by its lock.
  const auto& [folder, every_steps, resume, newest_kept, best_kept, monitor, better, grace,
               disk_limit, remove_at_end] = options;
  if (folder.empty()) return "none";
  return fmt::format("every {} steps, resume {}, kept {} and {} by {} ({}){}", every_steps, resume,
                     newest_kept, best_kept, monitor, static_cast<int>(better),
                     remove_at_end ? ", removed at the end" : "");
}

std::string scaling_words(const std::optional<optim::LossScaling>& scaling) {
  if (!scaling) return "off";
  const auto& [initial, growth, growth_interval, backoff] = *scaling;
  return fmt::format("initial {}, growth {} after {}, backoff {}", initial, growth, growth_interval,
                     backoff);
}

std::string large_batch_words(const std::optional<LargeBatch>& large) {
  if (!large) return "none";
  const auto& [base, base_rate, scaling, warm_up, decay_norms_and_biases, zero_last_norms] = *large;
  return fmt::format("base {} by {}, scaling {}, warm up {} epochs and {} steps, {}{}", base,
                     base_rate, scaling ? static_cast<int>(*scaling) : -1, warm_up.epochs,
                     warm_up.steps, decay_norms_and_biases ? "decays all" : "spares norms",
                     zero_last_norms ? ", last norms 0" : "");
}

// The ranks of a mesh have other modules each; the graph is of all of them.
void add_model(AgreedLines& lines, const Model::State& model) {
  if (model.graph)
    for (const nn::Node& node : model.graph->nodes()) lines.add("layer", nn::words_of(node));
  else if (const ExportedModule* const exported = model.exported())
    for (const auto& [what, words] : exported->facts()) lines.add(what + " of the .pt2", words);
  else if (model.modules.whole() == nullptr)
    lines.add("module", c10::str(*model.modules.module(0)));
  const auto* const own = adapted(*model.modules.module(0));
  if (own == nullptr) return;
  for (const nn::LoraMatrix& matrix : own->adapters())
    lines.add("adapters", fmt::format("{} {}", matrix.name, nn::to_string(matrix.lora)));
  lines.add("weights beside adapters, sha256", weights_sha256(base_of(*own)));
}

}  // namespace

bool is_alone(const Strategy& strategy) {
  return strategy.membership().alone() && !strategy.options().uses_servers();
}

std::string compile_words(const CompileOptions& options, const Goals& goals,
                          const Model::State& model) {
  const auto& [optimizer, loss, metrics, learning_rate, precision, loss_scaling, outputs,
               num_inputs, large_batch, measures, steps_per_execution, train_step, test_step] =
      options;
  AgreedLines lines;
  lines.add("optimizer", optimizer_words(optimizer));
  lines.add("schedule", learning_rate ? learning_rate->name() : "none");
  lines.add("rates at steps 0, 1, 2, 5, 10, 20, ...", fmt::format("{}", rates_of(learning_rate)));
  lines.add("precision", name_of(precision));
  lines.add("loss_scaling", scaling_words(loss_scaling));
  lines.add("large_batch", large_batch_words(large_batch));
  for (const Measure& measure : kMeasures) lines.add(measure.name, measures.*measure.field);
  lines.add("num_inputs", num_inputs);
  lines.add("steps_per_execution", steps_per_execution);
  lines.add("train_step", train_step ? "one's own" : "none");
  lines.add("test_step", test_step ? "one's own" : "none");
  for (const Goal& goal : goals) lines.add("loss", goal_words(goal));  // loss, metrics and outputs
  add_model(lines, model);
  return lines.text();
}

std::string fit_words(const Compiled& compiled, const data::Dataset& train,
                      const FitOptions& options, uint64_t seed) {
  // Each worker's own: verbose, slow, when_begun, and stop_after, which asks for an end of all.
  // `train` and `validation` have what batch, shuffle and validation_split say.
  const auto& [epochs, validation, callbacks, max_steps, given_seed, verbose, on_nan, slow,
               initial_epoch, steps_per_epoch, validation_freq, class_weight, accumulate,
               microbatches, checkpoints, stop_after, validation_split, loader, batch, when_begun,
               class_weights, shuffle] = options;
  AgreedLines lines;
  lines.add("seed", seed);
  add_shape(lines, "training data", train);
  if (validation)
    add_shape(lines, "validation data", *validation);
  else
    lines.add("validation data", "none");
  lines.add("a damaged sample", bad_words(loader));
  lines.add("epochs", epochs);
  lines.add("initial_epoch", initial_epoch);
  lines.add("steps_per_epoch", steps_per_epoch);
  lines.add("max_steps", max_steps);
  lines.add("validation_freq", validation_freq);
  lines.add("accumulate", accumulate);
  lines.add("microbatches", microbatches);
  lines.add("class_weight", fmt::format("{}", class_weight));
  for (const auto& [output, weights] : class_weights)
    lines.add("class_weight of " + output, fmt::format("{}", weights));
  lines.add("on_nan", name_of(on_nan));
  lines.add("checkpoints", checkpoint_words(checkpoints));
  std::vector<std::string_view> names;
  for (const auto& callback : callbacks) {
    names.push_back(callback->name());
    if (callback->on_every_worker()) lines.add("on every worker", names.back());
    if (const auto own = callback->checkpoints())
      lines.add(fmt::format("checkpoints of {}", names.back()), checkpoint_words(*own));
  }
  lines.add("callbacks", fmt::format("[{}]", fmt::join(names, ", ")));
  lines.add("dense kernel", nn::name_of(nn::dense_kernel()));
  return lines.text() + compiled.words;
}

std::string evaluate_words(const data::LoaderOptions& loader, const Callbacks& callbacks) {
  AgreedLines lines;
  lines.add("a damaged sample", bad_words(loader));
  return lines.text() + predict_words(callbacks);
}

std::string predict_words(const Callbacks& callbacks) {
  for (const auto& callback : callbacks)
    if (!callback) throw UsageError("callbacks: one of them is null");
  AgreedLines lines;
  for (const auto& callback : callbacks)
    lines.add("callback", fmt::format("{}{}", callback->name(),
                                      callback->on_every_worker() ? ", on every worker" : ""));
  return lines.text();
}

std::string load_words(const LoadOptions& options) {
  const auto& [skip, strict] = options;
  AgreedLines lines;
  lines.add("skip", fmt::format("[{}]", fmt::join(skip, ", ")));
  lines.add("strict", strict);
  return lines.text();
}

void require_same_words(Strategy& strategy, std::string_view operation, const std::string& own) {
  const Membership& members = strategy.membership();
  if (members.in_step()) members.require_same(operation, own);
}

}  // namespace tutti::detail
