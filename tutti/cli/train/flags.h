/// The flags of `tutti train`: one table of them says which field of FitOptions, CompileOptions and
/// what these hold each one sets. Without LibTorch.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/cli/checks.h"
#include "tutti/cli/data/reading.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/text_models.h"
#include "tutti/strategy/choice/measures.h"

namespace tutti::cli {

struct Command;

/// What was typed; unset is empty.
struct TrainFlags {
  JobFlags job;
  DataFlags data;
  LoaderFlags loader;
  GptFlags gpt;
  /// Not typed: once the data is open, what undoes the scaling of a number that is predicted.
  /// Unset: classes are.
  std::optional<double> number_scale;
  int64_t epochs = 5;
  int64_t max_steps = 0;
  int64_t steps_per_epoch = 0;
  int64_t take = 0;               ///< samples to train on; 0: all
  std::string from;               ///< weights to begin with
  std::string eval_model;         ///< of a .pt2: the file of evaluation
  std::vector<std::string> lora;  ///< of a .pt2: patterns of matrices with adapters
  std::string freeze;             ///< patterns of parameters that stay as they are
  int64_t accumulate = 1;
  int64_t microbatches = 1;
  std::string pipeline = "1f1b";
  std::string cut;  ///< layers that begin a stage; "": balanced
  std::string recompute = "none";
  std::string precision = "float32";
  int64_t steps_per_execution = 1;
  std::string loss_scaling;
  bool step_graph = false;
  std::string class_weight;
  std::string metrics;
  int64_t validation_freq = 1;
  std::string nan = "stop";
  int64_t verbose = 1;
  std::string slow_worker;
  std::string large_batch;
  Measures measures;
  std::string schedule;
  int64_t warm_up = 0;
  std::string early_stopping;
  std::string reduce_on_plateau;
  std::string model_checkpoint;
  std::string csv_log;
  std::string tensorboard;
  std::string out;
  int64_t checkpoint_every = 0;
  int64_t keep_checkpoints = 3;
  int64_t keep_best = 0;
  std::string best_by = "val_loss";
  bool resume = false;
  double disk_limit_s = 600;
  double stop_after_s = 0;
  std::string json;
  std::string trace;
};

/// A flag, where its value goes, and the field it sets; "": the command's own.
struct TrainFlag {
  using Target = std::variant<int64_t TrainFlags::*, double TrainFlags::*, bool TrainFlags::*,
                              std::string TrainFlags::*, std::vector<std::string> TrainFlags::*,
                              bool Measures::*>;

  std::string field;
  std::string flag;
  std::string type;
  Target target;
  std::string help;
  Check check{};
};

void add_train_flags(Command& command, TrainFlags& flags);

/// A field ("FitOptions::epochs"), a callback or a schedule, and the flag that sets it; or without
/// one, and why.
struct OptionField {
  std::string field;
  std::string flag;
  std::string why_none;
};
std::vector<OptionField> option_fields();

}  // namespace tutti::cli
