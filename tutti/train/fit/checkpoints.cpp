// What of a training is kept on disk while it goes on, and how it goes on from that.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/cluster/join/join.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/strategy/membership/detail/data_agreement.h"
#include "tutti/strategy/moving_shares.h"
#include "tutti/train/checkpointing/detail/model_kept.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/fit/detail/parts.h"
#include "tutti/train/metrics/better.h"
#include "tutti/train/model/detail/graph_file.h"
#include "tutti/train/model/detail/settings.h"
#include "tutti/train/model/weight_average.h"

namespace tutti::detail {
namespace {

CheckpointOptions options_of(const FitOptions& options) {
  CheckpointOptions chosen = options.checkpoints;
  for (const auto& callback : options.callbacks) {
    const auto own = callback->checkpoints();
    if (!own) continue;
    if (!chosen.folder.empty())
      throw UsageError(fmt::format("fit: callback {}: there are checkpoints in {} already",
                                   callback->name(), chosen.folder.string()));
    chosen = *own;
  }
  return chosen;
}

void require_at_least(const char* field, int64_t value, int64_t least) {
  if (value < least)
    throw UsageError(
        fmt::format("fit: checkpoints: {} is {}, must be {} or more", field, value, least));
}

std::string losses_words(const Compiled& compiled, const FitOptions& options) {
  std::vector<std::string> words;
  for (const Goal& goal : compiled.goals) words.push_back(goal_words(goal));
  if (compiled.train_step) words.emplace_back("a train_step of one's own");
  if (compiled.test_step) words.emplace_back("a test_step of one's own");
  if (!options.class_weight.empty())
    words.push_back(fmt::format("class_weight {}", options.class_weight));
  for (const auto& [output, weights] : options.class_weights)
    words.push_back(fmt::format("class_weight of {} {}", output, weights));
  return fmt::format("{}", fmt::join(words, "; "));
}

// Beside checkpoints, which are as good without it.
void keep_graph(const std::filesystem::path& folder, const std::optional<nn::Graph>& graph) {
  try {
    write_graph_file(folder / kGraphFile, graph);
  } catch (const Error& error) {
    log(LogLevel::warning, "the graph of the model is not beside its checkpoints: {}",
        error.what());
  }
}

Checkpointing::Priority priority_of(bool last) {
  return last ? Checkpointing::Priority::normal : Checkpointing::Priority::idle;
}

}  // namespace

void Fit::take_up_checkpoints() {
  const CheckpointOptions options = options_of(options_);
  if (options.folder.empty()) return;
  require_at_least("every_steps", options.every_steps, 0);
  require_at_least("newest_kept", options.newest_kept, 1);
  require_at_least("best_kept", options.best_kept, 0);
  require_at_least("disk_limit", options.disk_limit.count(), 0);
  if (!way_.pace->all_meet())
    throw UsageError(
        "fit: checkpoints are of workers that are in step; parameter servers keep snapshots "
        "(--snapshots)");
  if (options.best_kept > 0 &&
      std::ranges::find(history_.columns, options.monitor) == history_.columns.end())
    throw UsageError("fit: checkpoints: monitor: " +
                     unknown_quantity(options.monitor, history_.columns));
  compiled_.optimizer.updater().state();  // throws where it cannot be saved
  TrainingPlace place{.who = "fit",
                      .world = model_.strategy.world(),
                      .members = model_.strategy.membership(),
                      .asked_to_end = [this] { return asked_to_end() != 0; }};
  // With local updates checkpoints have the last averaging's weights, and each replica's own.
  place.require_whole = [this] {
    if (compiled_.optimizer.updater().averaged() == nullptr) model_.require_whole();
  };
  place.lay_beside = [graph = model_.graph](const std::filesystem::path& folder) {
    keep_graph(folder, graph);
  };
  saved_.checkpoints.emplace(std::move(place), options, parts());
  saved_.facts = facts();
}

// On a mesh the ranks that have one part of the model add its gradients.
static std::string shape_of_replicas(const World& world) {
  if (world.model_ranks() == 1) return world.shape.to_string();
  return world.mesh_groups[0].data.reduction_shape().to_string();
}

// What bits depend on beside the rest: how many parts a batch and a layer have.
static bool same_parts(const CheckpointManifest& a, const CheckpointManifest& b) {
  return int64_t{a.replicas} * a.microbatches == int64_t{b.replicas} * b.microbatches &&
         a.tensor_blocks == b.tensor_blocks;
}

static std::string parts_in_words(const CheckpointManifest& manifest) {
  std::string words = fmt::format("{} replicas", manifest.replicas);
  if (manifest.microbatches > 1) words += fmt::format(" of {} microbatches", manifest.microbatches);
  if (manifest.tensor_blocks > 1)
    words += fmt::format(" with layers in {} blocks", manifest.tensor_blocks);
  return words;
}

static std::string given_shares(const Strategy& strategy) {
  const StrategyOptions& options = strategy.options();
  if (options.by_speed) return "by speed";
  if (const MovingShares* const moving = strategy.moving_shares())
    return "file " + sha256_hex(moving->schedule().to_json(strategy.world().size));
  return options.shares.empty() ? "equal" : fmt::format("{}", fmt::join(options.shares, ", "));
}

// Whether the replicas have the parts of each batch that they would have had: by speed a training
// goes on with the shares that it had, be they those of a file until then.
static bool same_shares(const CheckpointManifest& then, const CheckpointManifest& now,
                        const MovingShares* moving) {
  if (then.given_shares == now.given_shares) return true;
  const data::ShareSchedule shares_then = shares_in(then, "checkpoint");
  const bool moved = then.given_shares == "by speed" || then.given_shares.starts_with("file ") ||
                     !shares_then.changes.empty();
  if (moving == nullptr || !moved) return false;
  if (now.given_shares == "by speed") return true;
  data::ShareSchedule so_far = moving->schedule();
  so_far.cut(then.version + 1);
  return !then.given_shares.starts_with("file ") && so_far == shares_then;
}

// What another training than this one it was, of the same samples; "": it is this one.
static std::string other_bits(const CheckpointManifest& then, const CheckpointManifest& now,
                              const MovingShares* moving) {
  if (!same_parts(then, now))
    return fmt::format("; it is of {}: the same samples follow, bits differ", parts_in_words(then));
  if (now.replicas == 1 || same_shares(then, now, moving)) return "";
  if (then.given_shares.empty())
    return "; it does not say of which shares it is: the same samples follow, bits differ unless "
           "these are the same";
  const auto words = [](const std::string& shares) {
    return shares.starts_with("file ") ? "those of a file" : shares;
  };
  return fmt::format("; its shares are {}, here they are {}: the same samples follow, bits differ",
                     words(then.given_shares), words(now.given_shares));
}

// What does not change while the training goes on.
CheckpointManifest Fit::facts() const {
  const Strategy& strategy = model_.strategy;
  const World& world = strategy.world();
  CheckpointManifest facts{.seed = seed_,
                           .global_batch = train_.global_batch_size(),
                           .accumulate = options_.accumulate,
                           .num_samples = train_.num_samples(),
                           .steps_per_epoch = course_.epoch_length,
                           .strategy = std::string(strategy.kind()),
                           .replicas = world.num_replicas(),
                           .workers = world.size / world.local,
                           .reduction_shape = shape_of_replicas(world),
                           .mesh = world.model_ranks() > 1 ? world.mesh.to_string() : "",
                           .microbatches = options_.microbatches,
                           .tensor_blocks = world.tensor_blocks,
                           .threads_per_replica = strategy.options().threads_per_replica,
                           .dense_kernel = std::string(nn::name_of(nn::dense_kernel())),
                           .samples_sha256 = digest_of_first_samples(train_, seed_),
                           .data_sha256 = digest_of(train_, seed_),
                           .optimizer = compiled_.optimizer.updater().state().kind,
                           .optimizer_options = compiled_.optimizer_words,
                           .compression = describe(strategy.options().compression),
                           .schedule = compiled_.rate ? compiled_.rate->name() : "",
                           .schedule_rates = rates_of(compiled_.rate),
                           .losses = losses_words(compiled_, options_),
                           .precision = std::string(name_of(compiled_.precision)),
                           .columns = history_.columns,
                           .lives = id_of_all_lives(),
                           .tutti_version = TUTTI_VERSION,
                           .libtorch_version = TORCH_VERSION};
  if (options_.validation) facts.validation_sha256 = digest_of(*options_.validation, seed_);
  facts.given_shares = given_shares(strategy);
  facts.metrics = quantities_of(compiled_.goals);
  if (const SparseTables* tables = compiled_.optimizer.tables())
    for (const ps::SparseTableSpec& table : tables->specs()) facts.tables.push_back(table.words());
  return facts;
}

// Callbacks last: they may change what stands before them.
KeptParts Fit::parts() {
  KeptParts parts = kept_of(model_);
  parts.push_back(kept_totals(model_, saved_.totals));
  parts.push_back(kept_history(history_));
  for (const auto& watcher : watchers_)
    if (auto kept = watcher->kept()) parts.push_back(std::move(kept));
  for (const auto& callback : options_.callbacks)
    if (auto kept = callback->kept()) parts.push_back(std::move(kept));
  parts.push_back(kept_callbacks(*callbacks_, model_));
  return parts;
}

void Fit::go_on() {
  if (!saved_.checkpoints) return;
  saved_.resumed = saved_.checkpoints->resume(saved_.facts);
  if (!saved_.resumed) return;
  const CheckpointManifest& then = *saved_.resumed;
  for (const std::string& name : callbacks_->quantities())
    if (const auto value = then.values.find(name == "loss" ? "train_loss" : name);
        value != then.values.end())
      shown_.values.emplace_back(name, value->second);
  const std::string other = other_bits(then, saved_.facts, model_.strategy.moving_shares());
  shown_.progress->say(fmt::format("goes on from {}: epoch {}, after step {} of {}{}",
                                   name_of_checkpoint(then.step), then.epoch + 1,
                                   then.step_in_epoch, then.steps_per_epoch, other));
}

// By local replica.
std::vector<Totals> Fit::first_totals(const Epoch& epoch) {
  if (!saved_.resumed) return std::vector<Totals>(static_cast<size_t>(epoch.world->local));
  saved_.resumed.reset();
  return std::exchange(saved_.totals, {});
}

int64_t Fit::steps_until_pause(const Epoch& epoch, int64_t done) const {
  int64_t left = epoch.steps - done;
  for (const auto& watcher : watchers_) left = std::min(left, watcher->steps_until_pause());
  return saved_.checkpoints ? std::min(left, saved_.checkpoints->next_pause(history_.steps)) : left;
}

CheckpointManifest Fit::manifest_now() const {
  CheckpointManifest now = saved_.facts;
  now.step = history_.steps;
  now.version = compiled_.optimizer.version();
  now.ended = callbacks_->ends();
  now.learning_rate = compiled_.optimizer.learning_rate();
  now.first_epoch = history_.first_epoch;
  now.images = history_.images;
  now.train_seconds = history_.train_seconds;
  now.validation_seconds = history_.validation_seconds;
  if (!history_.rows.empty())
    for (size_t i = 0; i < history_.columns.size(); ++i)
      if (const double value = history_.rows.back()[i]; std::isfinite(value))
        now.values[history_.columns[i]] = value;
  return now;
}

// Between two steps of an epoch: when it is time, where the training is cut short, and when it is
// asked to end. The end of an epoch comes after its validation.
void Fit::save_between(const Epoch& epoch, const std::vector<Totals>& each) {
  const bool failed = each[0].bad_step >= 0 && options_.on_nan != OnNan::go_on;
  if (!saved_.checkpoints || failed || each[0].stop != Stop::no) return;
  const int64_t done = history_.steps - epoch.steps_before;
  const bool asked = each[0].signal != 0;
  const bool cut = done == epoch.steps && done < course_.epoch_length;
  if (!asked && !cut && (done == course_.epoch_length || !saved_.checkpoints->due(history_.steps)))
    return;
  if (asked) return save_asked(epoch, each);
  saved_.totals = each;
  saved_.checkpoints->save(manifest_within(epoch), priority_of(cut));
}

void Fit::save_asked(const Epoch& epoch, const std::vector<Totals>& each) {
  saved_.totals = each;
  CheckpointManifest manifest = manifest_within(epoch);
  const std::string name = name_of_checkpoint(manifest.step);
  if (saved_.checkpoints->save_in_grace(std::move(manifest)))
    shown_.progress->say(fmt::format("saved {}, from which the training can go on", name));
}

CheckpointManifest Fit::manifest_within(const Epoch& epoch) const {
  CheckpointManifest manifest = manifest_now();
  manifest.epoch = epoch.number;
  manifest.step_in_epoch = history_.steps - epoch.steps_before;
  manifest.images += since_.images;
  manifest.train_seconds += std::chrono::duration<double>(since_.step - since_.epoch).count();
  return manifest;
}

// Who is asked to end meanwhile has trained the whole epoch, but not validated it.
Scores Fit::validate(const Epoch& epoch, const std::vector<Totals>& each) {
  try {
    const auto average = weight_average_of(options_.callbacks, model_.modules);
    const auto averaged = average ? average->use_to_validate() : nullptr;  // not while saving
    return model_.evaluate(fmt::format("fit, validation after epoch {}", epoch.number + 1),
                           *options_.validation, options_.loader, options_.callbacks);
  } catch (const Interrupted&) {
    if (saved_.checkpoints) save_asked(epoch, each);
    throw;
  }
}

void Fit::save_after(const Epoch& epoch) {
  if (!saved_.checkpoints || history_.steps - epoch.steps_before < course_.epoch_length) return;
  const bool last = epoch.number + 1 == options_.epochs || callbacks_->ends() ||
                    (options_.max_steps > 0 && history_.steps >= options_.max_steps);
  if (!last && !saved_.checkpoints->due_after_epoch(history_.steps)) return;
  saved_.totals.clear();
  CheckpointManifest manifest = manifest_now();
  manifest.epoch = epoch.number + 1;
  saved_.checkpoints->save(std::move(manifest), priority_of(last));
}

}  // namespace tutti::detail
