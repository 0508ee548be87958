#include "tutti/cli/train/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/train/options.h"
#include "tutti/mesh/schedule.h"
#include "tutti/nn/precision.h"

namespace tutti::cli {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 40;
using Flags = std::vector<TrainFlag>;
using T = TrainFlags;

Flags training_flags() {
  return {
      {"FitOptions::epochs", "--epochs", "E", &T::epochs, "Passes over the training data",
       whole_number(1, 1'000'000)},
      {"FitOptions::max_steps", "--max-steps", "K", &T::max_steps, "End after so many steps in all",
       whole_number(1, kMostSteps)},
      {"FitOptions::steps_per_epoch", "--steps-per-epoch", "K", &T::steps_per_epoch,
       "Fewer steps an epoch than the data has (default: all)", whole_number(1, kMostSteps)},
      {"FitOptions::accumulate", "--accumulate", "BATCHES", &T::accumulate,
       "Batches whose gradients are added, without communication, to one update",
       whole_number(1, 1'000'000)},
      {"FitOptions::microbatches", "--microbatches", "M", &T::microbatches,
       "Parts of a replica's batch, one after another: stages (--mesh) work on several at a time",
       whole_number(1, 4096)},
      {"ModelLayout::schedule", "--pipeline", "NAME", &T::pipeline,
       fmt::format(
           "In what order stages compute: {}, interleaved:CHUNKS, or a file that tutti plan "
           "pipeline --csv wrote",
           fmt::join(mesh::schedule_names(), ", ")),
       some_name()},
      {"ModelLayout::cut", "--cut", "LAYER,...", &T::cut,
       "Layers that begin a stage (default: so that none takes longer than it must)", some_name()},
      {"ModelLayout::recompute", "--recompute", "WHAT", &T::recompute,
       "What is computed again in backward, to keep less: none, full (all of a stage), blocks "
       "(each of a transformer's), every:K layers, or layers' names (*.mlp.*,...)",
       some_name()},
      {"CompileOptions::precision", "--precision", "NAME", &T::precision,
       "Of forward and backward: float32, bfloat16, or float16 on a CUDA device; parameters are "
       "float32",
       one_of("precision", precision_names())},
      {"CompileOptions::steps_per_execution", "--steps-per-execution", "K", &T::steps_per_execution,
       "Of --strategy tpu: steps that one run of the compiled program makes",
       whole_number(1, 1'000)},
      {"CompileOptions::loss_scaling", "--loss-scaling", "FIELD=VALUE,...", &T::loss_scaling,
       "Scales losses before backward, as initial=65536,growth_interval=2000 (default: not)",
       some_name()},
      {"", "--step-graph", "", &T::step_graph,
       "On one GPU with one replica: each step is one graph of the device's"},
      {"", "--take", "SAMPLES", &T::take,
       "Train on so many samples alone, drawn by --seed (default: all)",
       whole_number(1, kMostSteps)},
      {"", "--from", "WEIGHTS", &T::from,
       "Begin with weights that are there, all of them: a safetensors file, a checkpoint, a "
       "snapshot of servers, or the folder that --out was given (default: drawn by --seed)",
       some_name()},
      {"", "--eval-model", "FILE.pt2", &T::eval_model,
       "Of a model of a .pt2 file: the same one exported in evaluation mode", some_name()},
      {"", "--lora", "PATTERN:rank=R", &T::lora,
       "Trains low-rank adapters of the matrices that a pattern fits, "
       "as "
       "*.attn.*:rank=8,alpha=16, beside weights that stay as they are; those that are saved have "
       "them added in. Again for more patterns",
       some_name()},
      {"", "--freeze", "PATTERN,...", &T::freeze,
       "Parameters that stay as they are, by name (*.bias), or layer or group of layers (layer1, "
       "conv2d_*); a batch norm among them infers",
       some_name()},
      {"FitOptions::class_weight", "--class-weight", "CLASS=WEIGHT,...", &T::class_weight,
       "What samples of these classes count, by name; others count 1", some_name()},
      {"CompileOptions::metrics", "--metrics", "NAME,...", &T::metrics,
       fmt::format("Beside accuracy: {}; any K. Of a number, beside mean_absolute_error: {}",
                   fmt::join(metric_words(), ", "), fmt::join(number_metric_words(), ", ")),
       some_name()},
      {"FitOptions::validation_freq", "--validation-freq", "EPOCHS", &T::validation_freq,
       "Epochs from one test to the next", whole_number(1, 1'000'000)},
      {"FitOptions::on_nan", "--nan", "NAME", &T::nan,
       "When the loss is no number: stop (an error), end (with the history so far) or ignore",
       one_of("answer to --nan", {"stop", "end", "ignore"})},
      {"FitOptions::stop_after", "--stop-after", "SECONDS", &T::stop_after_s,
       "End as after SIGTERM, with a checkpoint and exit code 143, once so much time has gone",
       positive_number(kMostSeconds)},
      {"FitOptions::verbose", "--verbose", "LEVEL", &T::verbose,
       "0 silent; 1 a bar on a terminal, else lines now and then; 2 a line an epoch",
       whole_number(0, 2)},
      {"FitOptions::slow", "--slow-worker", "R:F[:P]", &T::slow_worker,
       "For experiments: worker R takes F times as long, in a step with probability P"},
  };
}

Flags measure_flags() {
  Flags flags;
  for (const Measure& measure : kMeasures)
    flags.push_back({fmt::format("Measures::{}", measure.name), std::string(measure.flag), "",
                     measure.field, std::string(measure.help)});
  return flags;
}

Flags schedule_flags() {
  return {
      {"CompileOptions::learning_rate", "--schedule", "NAME[:FIELD=VALUE,...]", &T::schedule,
       fmt::format("Of the learning rate, over all steps unless told: {}; as cosine:alpha=0.1",
                   fmt::join(schedule_names(), ", ")),
       some_name()},
      {"schedules::warm_up", "--warm-up", "STEPS", &T::warm_up,
       "In which the rate first grows from 0", whole_number(1, kMostSteps)},
      {"CompileOptions::large_batch", "--large-batch", "FIELD=VALUE,...", &T::large_batch,
       "The recipe for batches beyond that which a rate was found for, as "
       "base=256,base_rate=0.1,warm_up=5 (epochs): scales the rate and warms up, no weight decay "
       "of norms and biases, last norm of each residual block at 0",
       some_name()},
  };
}

Flags callback_flags() {
  const std::string such = "FIELD=VALUE,...";
  return {
      {"callbacks::early_stopping", "--early-stopping", such, &T::early_stopping,
       "Ends where a quantity gets no better, as patience=3,monitor=val_accuracy", some_name()},
      {"callbacks::reduce_on_plateau", "--reduce-on-plateau", such, &T::reduce_on_plateau,
       "Lowers the learning rate there, as factor=0.5,patience=3", some_name()},
      {"callbacks::model_checkpoint", "--model-checkpoint", such, &T::model_checkpoint,
       "Saves weights after epochs, as path=best.safetensors,save_best_only=true; a path may have "
       "{epoch} and {val_loss}",
       some_name()},
      {"callbacks::csv_logger", "--csv-log", "FILE", &T::csv_log,
       "Losses and metrics, a line an epoch, as it goes on", some_name()},
      {"callbacks::tensorboard", "--tensorboard", "DIR", &T::tensorboard,
       "Event files that TensorBoard shows", some_name()},
  };
}

Flags output_flags() {
  return {
      {"CheckpointOptions::folder", "--out", "DIR", &T::out,
       "Folder for model.safetensors, data.json, history.csv, history.svg and checkpoints/",
       some_name()},
      {"CheckpointOptions::every_steps", "--checkpoint-every", "STEPS", &T::checkpoint_every,
       "Steps from one checkpoint in DIR/checkpoints to the next (default: an epoch)",
       whole_number(1, kMostSteps)},
      {"CheckpointOptions::newest_kept", "--keep-checkpoints", "K", &T::keep_checkpoints,
       "The newest so many", whole_number(1, 1'000'000)},
      {"CheckpointOptions::best_kept", "--keep-best", "K", &T::keep_best,
       "And so many more, the best after an epoch", whole_number(1, 1'000'000)},
      {"CheckpointOptions::monitor", "--best-by", "QUANTITY", &T::best_by,
       "By which they are the best", some_name()},
      {"CheckpointOptions::resume", "--resume", "", &T::resume,
       "Go on from the newest whole checkpoint of --out, bit for bit; from the begin where there "
       "is "
       "none"},
      {"CheckpointOptions::disk_limit", "--disk-limit", "SECONDS", &T::disk_limit_s,
       "How long a checkpoint may wait for a slow disk", positive_number(kMostSeconds)},
      {"", "--json", "FILE", &T::json, "File for the figures of this training", some_name()},
      {"", "--trace", "FILE", &T::trace,
       "File that says what happened when, for chrome://tracing or Perfetto", some_name()},
  };
}

std::vector<std::pair<std::string, Flags>> flags_by_group() {
  return {{"Training", training_flags()},
          {"Learning rate over the steps", schedule_flags()},
          {"Callbacks", callback_flags()},
          {"Measures", measure_flags()},
          {"Outputs and checkpoints", output_flags()}};
}

template <class Value>
Value& field_of(TrainFlags& flags, Value TrainFlags::* field) {
  return flags.*field;
}
bool& field_of(TrainFlags& flags, bool Measures::* field) { return flags.measures.*field; }

// Those that the job's own flags set, that lie in one field with others, or that have no flag.
std::vector<OptionField> other_fields() {
  const std::string resumed = "--resume knows where it was";
  const std::string function = "is a function of one's own";
  return {
      {"CompileOptions::optimizer", "--optimizer", ""},
      {"CompileOptions::loss", "", "the data says it: of classes, or of a number"},
      {"CompileOptions::outputs", "", "networks of the zoo have one output here"},
      {"CompileOptions::train_step", "", function},
      {"CompileOptions::test_step", "", function},
      {"CompileOptions::measures", "", "each has a flag: Measures::"},
      {"CompileOptions::num_inputs", "", "a graph knows its own"},
      {"FitOptions::validation", "--validation", ""},
      {"FitOptions::validation_split", "--validation-split", ""},
      {"FitOptions::loader", "--workers", ""},
      {"ModelLayout::plan", "", "that of the graph is found by its form"},
      {"ModelLayout::input", "", "of a Sequential; models by name are graphs"},
      {"FitOptions::batch", "", "of tensors; --batch-size is that of data"},
      {"FitOptions::shuffle", "", "of tensors; training data is shuffled"},
      {"FitOptions::class_weights", "", "networks of the zoo have one output here"},
      {"FitOptions::callbacks", "", "each has a flag: callbacks::"},
      {"FitOptions::seed", "--seed", ""},
      {"FitOptions::when_begun", "", function},
      {"FitOptions::initial_epoch", "", resumed},
      {"FitOptions::checkpoints", "", "each field has a flag: CheckpointOptions::"},
      {"CheckpointOptions::better", "", "the name of the quantity tells"},
      {"CheckpointOptions::grace", "--grace", ""},
      {"CheckpointOptions::remove_at_end", "", "what --out has got stays there"},
      {"Clip::value", "--clip-value", ""},
      {"Clip::norm", "--clip-norm", ""},
      {"Clip::global_norm", "--clip-global-norm", ""},
      {"schedules::constant", "--learning-rate", ""},
      {"schedules::scaled", "--large-batch", ""},
      {"callbacks::backup_and_restore", "", "--out with --resume does it"},
      {"callbacks::progress_bar", "--verbose", ""},
      {"callbacks::terminate_on_nan", "--nan", ""},
      {"callbacks::learning_rate_scheduler", "", function},
      {"callbacks::lambda", "", function},
  };
}

}  // namespace

void add_train_flags(Command& command, TrainFlags& flags) {
  add_job_flags(command, flags.job);
  command.at("--data").help =
      "What to train on: a folder of doodles (.npy), a folder of photos with a folder a class, "
      "records of photos (tars of WebDataset, TFRecord, MDS), a table (csv and its kin) or a file "
      "of "
      "IDX images; for gpt a file of text";
  add_data_flags(command, flags.data);
  add_text_flags(command, flags.data);
  add_gpt_flags(command, flags.gpt);
  add_loader_flags(command, flags.loader);
  for (const auto& [group, rows] : flags_by_group()) {
    command.group = group;
    for (const TrainFlag& row : rows)
      std::visit(
          [&](auto field) {
            command.add(row.flag, row.type, &field_of(flags, field), row.check, row.help);
          },
          row.target);
  }
  command.at("--lora").several = Several::again;
  command.at("--epochs").also = {"--epoch"};
  command.group = "Options";
}

std::vector<OptionField> option_fields() {
  std::vector<OptionField> fields = other_fields();
  for (const auto& [group, rows] : flags_by_group())
    for (const TrainFlag& row : rows)
      if (!row.field.empty()) fields.push_back({std::string(row.field), row.flag, ""});
  for (const std::string& name : schedule_names())
    fields.push_back({"schedules::" + name, "--schedule", ""});
  return fields;
}

}  // namespace tutti::cli
