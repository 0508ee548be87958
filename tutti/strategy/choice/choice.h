/// choose(): what of a training goes with what, and which updater it gets.
///
/// All that is refused because of something else that was asked for stands in one table
/// (rules.cpp); what is out of range by itself is check_options()'s, and what only a machine or a
/// file can tell is found there. Without LibTorch. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/strategy/choice/measures.h"
#include "tutti/strategy/choice/options.h"

namespace tutti {

/// What is trained, as far as that decides; what is not known yet is as it stands here.
struct RecipeFacts {
  bool torch_optimizer = false;
  bool own_reduction = false;         ///< given with the optimizer, not by name
  std::string more_than_a_rule{};     ///< optim::Recipe::more_than_a_rule()
  bool clips_or_groups = false;       ///< it clips gradients, or treats parameters apart
  std::string table{};                ///< name of the first embedding table; "": there is none
  std::string precision = "float32";  ///< of forward and backward
  int64_t steps_per_execution = 1;
  bool scales_losses = false;
  bool counts_labels = false;     ///< the loss is divided by how many labels count
  bool meets_in_forward = false;  ///< a layer needs all replicas there (SyncBatchNorm)
  Measures measures{};            ///< what is measured beside it
  bool large_batch = false;       ///< its rate is scaled
  bool rate_of_base = false;      ///< of the base batch, given with large_batch
  bool rate_given = false;        ///< with the optimizer
  std::string schedule{};         ///< of the rate, as typed; "": none
  bool warms_up = false;          ///< before it
  bool rate_on_plateau = false;   ///< a callback lowers it
};

/// How it is trained. Nothing: not known yet, and what is of use beside it is taken.
struct FitFacts {
  int64_t accumulate = 1;
  int64_t microbatches = 1;
  bool in_parts = false;           ///< in stages, or in blocks of layers
  bool replaces_damaged = false;   ///< samples that cannot be read
  bool restores_best = false;      ///< early stopping puts weights back
  bool splits_validation = false;  ///< samples off the training data (validation_split)
  bool validates = false;          ///< on data of its own (validation)
  bool resizes = false;            ///< the strategy, while it is there (Strategy::resize())
  bool slows = false;              ///< a worker, for an experiment
  std::string decides{};           ///< a callback or check that ends or changes it; "": none
  std::optional<bool> checkpoints{};
  std::optional<bool> best_kept{};        ///< checkpoints
  std::optional<bool> loads_ahead{};      ///< batches
  std::optional<bool> recomputes_part{};  ///< less than all of a stage
};

/// Where it is trained.
struct Machine {
  int workers = 1;                         ///< of the job
  bool launched = false;                   ///< by a command with flags of its own
  bool coordinated = false;                ///< a coordinator hands steps out to them
  std::optional<std::string> snapshots{};  ///< folder of the servers' snapshots; "": none
  std::optional<bool> gpus{};  ///< replicas compute on GPUs; nothing: only `device` says so
  std::optional<bool> nccl{};  ///< it adds up gradients of several processes
  bool several_devices = false;
  std::string not_there{};  ///< why devices cannot update parameters (can_update_on_devices())
};

/// What is asked for, all of it.
struct Asked {
  const StrategyOptions& strategy;
  const RecipeFacts& recipe;
  const FitFacts& fit;
  const Machine& machine;
};

/// An option, or something else that others may not go with.
struct Feature {
  std::string_view name;                    ///< "--shard", or in plain words
  bool (*on)(const Asked&) = {};            ///< null: only what was typed tells
  std::string (*words)(const Asked&) = {};  ///< with its value; null: the name
};

enum class Together : uint8_t {
  never,   ///< `one` and `other` beside each other are refused
  needed,  ///< `one` does nothing without `other`, and is refused, also where it was only typed
};

struct Rule {
  const Feature& one;
  Together together;
  const Feature& other;
  /// {one} and {other} stand for their words, {kind} for the strategy.
  std::string_view why;
  std::string_view instead{};  ///< what to try; "": to leave `one` out
};

/// All of them; the first that is broken is said.
std::span<const Rule> rules();

/// UsageError for the first rule that is broken: what, why, and what to try.
void require_together(const StrategyOptions& strategy, const RecipeFacts& recipe = {},
                      const FitFacts& fit = {}, const Machine& machine = {});

enum class UpdaterKind : uint8_t {
  shared,      ///< the fused step: one memory, of which each replica updates a slice
  replicated,  ///< a copy of parameters and state a replica
  sharded,     ///< slices of the state, the gradients, or the parameters too
  local,       ///< the same, of which each replica makes some updates alone
  served,      ///< on parameter servers
  on_devices,  ///< the fused step where replicas compute
  compiled,    ///< programs of a plugin
};

struct Choice {
  UpdaterKind updater = UpdaterKind::shared;
  bool staged = false;  ///< replicas compute on devices, and the CPU updates
  std::string why{};    ///< it is staged
};

/// UsageError for options out of range (check_options()) and for what does not go together.
Choice choose(const StrategyOptions& strategy, const RecipeFacts& recipe = {},
              const FitFacts& fit = {}, const Machine& machine = {});

}  // namespace tutti
