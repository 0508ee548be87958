// tutti evaluate: tests the checkpoints of a training, of one that goes on too.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/base/idle.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/reading.h"
#include "tutti/cli/data/spec.h"
#include "tutti/cli/results.h"
#include "tutti/cli/train/checkpoints.h"
#include "tutti/cli/train/class_table.h"
#include "tutti/cli/train/device_flags.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/network.h"
#include "tutti/cli/train/network_module.h"
#include "tutti/cli/train/text_models.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/observe/confusion.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/model.h"
#include "tutti/train/model/weights.h"

namespace tutti::cli {
namespace {

constexpr Millis kPause{100};

struct EvaluateFlags {
  std::string model;
  std::string data;
  std::string checkpoints;
  bool follow = false;
  double idle_limit_s = 600;
  int64_t threads = 0;
  DeviceFlags devices;
  LoaderFlags loader;
  TableFlags table;
  std::string json;
  std::string confusion;
};

StrategyOptions strategy_options(const EvaluateFlags& flags) {
  StrategyOptions options{.threads_per_replica = static_cast<int>(flags.threads), .alone = true};
  take_devices(flags.devices, options);
  if (several_devices(flags.devices)) options.kind = "mirrored";
  if (!flags.devices.plugin.empty()) options.kind = "tpu";
  return options;
}

// What is tested on, and how its samples were made for the training.
struct TestData {
  DataSpec spec;  // names the model
  data::Dataset dataset;
};

bool is_doodles(const std::string& path) {
  return data::recognise(path).kind == data::DataKind::quickdraw;
}

// Of doodles their test split, which was not trained on; of other data all. Without a word of the
// training they are doodles.
TestData test_data(const EvaluateFlags& flags) {
  auto spec = spec_beside(flags.checkpoints);
  if (!spec && !is_doodles(flags.data))
    throw UsageError(
        fmt::format("--checkpoints {}: there is no {} beside it, which says what becomes of {}; "
                    "tutti train --out DIR writes it",
                    flags.checkpoints, kDataSpecFile, flags.data));
  const std::string model = model_of_weights(spec, flags.model, flags.checkpoints);
  if (spec) spec->model = model;
  if (!flags.table.header.empty() && spec && spec->kind != data::DataKind::csv)
    throw UsageError(fmt::format("--header {}: is for tables; the model was trained on {}",
                                 flags.table.header, data::name_of(spec->kind)));
  if (spec && spec->kind != data::DataKind::quickdraw)
    return {*spec, open_as(*spec, flags.data, flags.table.has_header()).batch(kTestBatch)};
  const auto doodles = data::quickdraw(
      flags.data, {.split = "test", .classes = spec ? spec->classes : std::vector<std::string>{}});
  if (!spec)
    spec = DataSpec{.kind = data::DataKind::quickdraw,
                    .classes = doodles.classes(),
                    .shape = doodles.columns().at(0).shape,
                    .model = model};
  require_same_classes(*spec, doodles, flags.data);
  return {*spec, doodles.batch(kTestBatch)};
}

// Of text each position has a label, and its classes are characters.
bool has_class_table(const DataSpec& spec) {
  const int64_t classes = std::ssize(spec.classes);
  return !spec.of_text() && classes > 1 && classes <= kMostClassesOfATable;
}

std::vector<Metric> metrics_for(const DataSpec& spec) {
  std::vector<Metric> all{metric_for(spec)};
  if (has_class_table(spec)) all.push_back(metrics::confusion_matrix());
  return all;
}

class Evaluation {
 public:
  explicit Evaluation(const EvaluateFlags& flags)
      : flags_(flags),
        test_(test_data(flags)),
        network_(network_beside(test_.spec, flags.model, flags.checkpoints)),
        model_(Strategy(strategy_options(flags)), [&] { return made_of(network_); }) {
    const DataSpec& spec = test_.spec;
    if (!spec.of_text() && std::ssize(spec.classes) > kMostClassesOfATable)
      say("{} classes: no table of them and no confusion matrix, which are of at most {}\n",
          spec.classes.size(), kMostClassesOfATable);
    if (!flags.confusion.empty() && !has_class_table(spec))
      throw UsageError(
          fmt::format("--confusion {}: {}; the picture is of a model that predicts 2 to {} classes",
                      flags.confusion,
                      spec.of_text() ? "this one predicts characters"
                                     : fmt::format("this one has {} classes", spec.classes.size()),
                      kMostClassesOfATable));
    model_.compile(
        {.optimizer = optim::sgd(), .loss = loss_for(spec), .metrics = metrics_for(spec)});
    if (const auto* const own = adapted()) base_ = detail::copy_of_base(*own);
  }

  void load(const Checkpoint& checkpoint) {
    begin_ = Clock::now();
    // One before may have been of whole weights, and adapters stand beside those at first.
    if (const auto* const own = adapted()) detail::put_back_base(*own, base_);
    model_.load(checkpoint.path);
  }

  /// Of the one that was loaded: prints a line, of the last one the classes too, and writes all
  /// figures so far. Throws Error after that where the loss is not finite.
  void add(const Checkpoint& checkpoint) {
    const Scores scores =
        model_.evaluate(test_.dataset, loader_options(flags_.loader), /*verbose=*/1);
    const std::string metric = metric_for(test_.spec).name();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    print_line("{}: test loss {:.4f}, {} {} ({} samples, {:.1f} s)", checkpoint.name(), scores.loss,
               metric, figure_words(test_.spec, scores.at(metric)), scores.samples, seconds);
    OrderedJson json{{"checkpoint", checkpoint.path.string()},
                     {"model", test_.spec.model},
                     {"loss", scores.loss},
                     {metric, scores.at(metric)},
                     {"samples", scores.samples},
                     {"weights_sha256", model_.weights_sha256()}};
    if (has_class_table(test_.spec) && std::isfinite(scores.loss)) {
      const Matrix confusion = scores.matrix("confusion_matrix");
      if (!flags_.follow || checkpoint.is_last)
        for (const std::string& line : class_table(test_.spec.classes, confusion))
          print_line("{}", line);
      json.update(json_of_classes(test_.spec.classes, confusion));
      if (!flags_.confusion.empty())
        write_file_atomically(
            flags_.confusion,
            plots::confusion_svg(fmt::format("{}, {} {}", checkpoint.name(), metric,
                                             figure_words(test_.spec, scores.at(metric))),
                                 test_.spec.classes, confusion));
    }
    flush_results();
    lines_ += json_text(json) + "\n";
    if (!flags_.json.empty()) write_file_atomically(flags_.json, lines_);
    if (!std::isfinite(scores.loss)) throw_not_finite(checkpoint, scores.loss);
  }

 private:
  const nn::Adapted* adapted() const {
    return detail::adapted(std::as_const(*model_.modules().module(0)));
  }

  [[noreturn]] void throw_not_finite(const Checkpoint& checkpoint, double loss) const {
    const std::string found = what_is_not_finite(merged_state_of(*model_.modules().module(0)));
    throw Error(fmt::format(
        "{}: the test loss is {}: {}", checkpoint.path.string(),
        std::isnan(loss) ? "no number (NaN)" : "infinite",
        found.empty() ? "all weights are finite, so that the data, or the model with them, is not"
                      : found + "\n  the training has failed; an earlier checkpoint may be sound"));
  }

  const EvaluateFlags& flags_;
  const TestData test_;
  const Network network_;
  Model model_;
  NamedTensors base_{};  // of a network with adapters
  TimePoint begin_{};
  std::string lines_;
};

int evaluate_newest(const EvaluateFlags& flags, Evaluation& evaluation) {
  const Checkpoint newest = checkpoints_in(flags.checkpoints).back();
  evaluation.load(newest);
  evaluation.add(newest);
  return 0;
}

// False when it was removed before it was read: the newest snapshots alone are kept.
bool evaluated(Evaluation& evaluation, const Checkpoint& checkpoint) {
  try {
    evaluation.load(checkpoint);
  } catch (const Error&) {
    if (is_there(checkpoint.path)) throw;
    say("{}: was removed before it was read\n", checkpoint.name());
    return false;
  }
  evaluation.add(checkpoint);
  return true;
}

// Nothing while they cannot be listed: the next look may.
std::vector<Checkpoint> fresh_in(CheckpointFollower& follower, std::string& trouble) {
  try {
    return follower.fresh();
  } catch (const IoError& error) {
    if (trouble != error.what()) log(LogLevel::warning, "{}", error.what());
    trouble = error.what();
    return {};
  }
}

// Until the job has written what it writes at its end, or writes nothing for too long.
int follow(const EvaluateFlags& flags, Evaluation& evaluation) {
  const Millis idle_limit = millis_of(flags.idle_limit_s);
  CheckpointFollower follower(flags.checkpoints);
  std::string trouble;
  int64_t count = 0;
  say("waiting for checkpoints in {}\n", flags.checkpoints);
  for (Deadline idle(idle_limit); !idle.passed(); std::this_thread::sleep_for(kPause)) {
    throw_if_stop_requested("evaluate");
    for (const Checkpoint& checkpoint : fresh_in(follower, trouble)) {
      if (!evaluated(evaluation, checkpoint)) continue;
      ++count;
      idle = Deadline(idle_limit);
      if (!checkpoint.is_last) continue;
      say("{} is the last of its job: {} checkpoints evaluated\n", checkpoint.name(), count);
      return 0;
    }
  }
  throw Timeout(
      fmt::format("no new checkpoint in {} for {} s, after {}; has its job failed?\n"
                  "  --idle-limit SECONDS waits longer",
                  flags.checkpoints, flags.idle_limit_s, count));
}

// What a training says of its data before its first step; a model and doodles need no word of it.
void wait_for_spec(const EvaluateFlags& flags) {
  if (is_doodles(flags.data) && !flags.model.empty()) return;
  const Deadline idle(millis_of(flags.idle_limit_s));
  while (!spec_beside(flags.checkpoints)) {
    throw_if_stop_requested("evaluate");
    if (idle.passed())
      throw Timeout(
          fmt::format("no {} in {} for {} s; has its job failed?\n"
                      "  --idle-limit SECONDS waits longer",
                      kDataSpecFile, flags.checkpoints, flags.idle_limit_s));
    std::this_thread::sleep_for(kPause);
  }
}

const std::vector<NeededBy<EvaluateFlags>>& needs_of_evaluations() {
  constexpr std::string_view kOfLoader =
      "it is of batches that are made ahead, and --workers 0 makes none";
  static const auto loads_ahead = [](const EvaluateFlags& flags) {
    return flags.loader.workers != "0";
  };
  static const std::vector<NeededBy<EvaluateFlags>> rows = {
      {"--idle-limit", [](const EvaluateFlags& flags) { return flags.follow; },
       "nothing is waited for without --follow"},
      {"--loader-memory", loads_ahead, kOfLoader},
      {"--ahead", loads_ahead, kOfLoader}};
  return rows;
}

int evaluate(const EvaluateFlags& flags) {
  require_together(strategy_options(flags));
  if (!flags.follow && checkpoints_in(flags.checkpoints).empty())
    throw UsageError(
        fmt::format("--checkpoints {}: no checkpoint is there; expected a safetensors file, a "
                    "snapshot, or a folder of such\n  --follow waits for one",
                    flags.checkpoints));
  loader_options(flags.loader);  // what it refuses is refused here
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  if (!flags.confusion.empty()) require_writable(flags.confusion, "--confusion");
  install_stop_handler();
  if (flags.follow) wait_for_spec(flags);
  Evaluation evaluation(flags);
  return flags.follow ? follow(flags, evaluation) : evaluate_newest(flags, evaluation);
}

}  // namespace

void add_evaluate(Command& program) {
  auto flags = std::make_shared<EvaluateFlags>();
  Command& command = program.command(
      "evaluate", "Test the checkpoints of a training, also while it goes on (--follow)");
  command
      .place("MODEL", &flags->model, model_or_export(),
             all_model_words() + " (default: what data.json beside the checkpoints says)")
      .required = false;
  command
      .add("--data", "PATH", &flags->data,
           "Of the kind that was trained on: all of it counts, of doodles the test samples")
      .required = true;
  command
      .add("--checkpoints", "PATH", &flags->checkpoints, some_name(),
           "A safetensors file, or a folder that --out or --snapshots was given")
      .required = true;
  command.flag("--follow", &flags->follow,
               "Each one that comes, until the job has written its last");
  command.add("--idle-limit", "SECONDS", &flags->idle_limit_s, positive_number(kMostSeconds),
              "--follow: an error when none comes for so long");
  add_header_flag(command, flags->table.header);
  add_device_flags(command, flags->devices);
  add_loader_flags(command, flags->loader);
  command.add("--threads", "T", &flags->threads, whole_number(1, 1024),
              "Of LibTorch (default: usable cores)");
  command.add("--json", "FILE", &flags->json, some_name(),
              "File for the figures, an object a line");
  command.add("--confusion", "FILE", &flags->confusion, some_name(),
              "File for a picture of the confusion matrix, SVG; of the newest checkpoint");
  command.footer =
      "Examples:\n"
      "  tutti evaluate --data photos/val --checkpoints runs/photos\n"
      "  tutti evaluate mlp --data examples/data/quickdraw --checkpoints mlp.safetensors\n"
      "  tutti evaluate --data examples/data/quickdraw --checkpoints runs/mlp --follow --json "
      "mlp.json\n\n"
      "Where classes are predicted it prints precision, recall, F1 and samples of each, and the "
      "confusion matrix. On a terminal a bar shows how far it is.";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_evaluations());
    return evaluate(*flags);
  };
}

}  // namespace tutti::cli
