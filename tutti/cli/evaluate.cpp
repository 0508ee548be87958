// tutti evaluate: tests the checkpoints of a training, of one that goes on too.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/cli/checkpoints.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/device_flags.h"
#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
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
  std::string json;
};

StrategyOptions strategy_options(const EvaluateFlags& flags) {
  StrategyOptions options{.threads_per_replica = static_cast<int>(flags.threads)};
  take_devices(flags.devices, options);
  if (several_devices(flags.devices)) options.kind = "mirrored";
  return options;
}

class Evaluation {
 public:
  explicit Evaluation(const EvaluateFlags& flags)
      : flags_(flags),
        test_(data::quickdraw(flags.data, {.split = "test"}).batch(kTestBatch)),
        model_(Strategy(strategy_options(flags)), [&] {
          return models::model_by_name(
              flags.model, {.classes = test_.num_classes(), .input = test_.columns().at(0).shape});
        }) {
    model_.compile({.optimizer = optim::sgd(),
                    .loss = losses::sparse_categorical_crossentropy(),
                    .metrics = {metrics::accuracy()}});
  }

  void load(const Checkpoint& checkpoint) {
    begin_ = Clock::now();
    model_.load(checkpoint.path);
  }

  /// Of the one that was loaded: prints a line, and writes all figures so far. Throws Error after
  /// that where the loss is not finite.
  void add(const Checkpoint& checkpoint) {
    const Scores scores = model_.evaluate(test_);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    fmt::print("{}: test loss {:.4f}, accuracy {:.4f} ({} samples, {:.1f} s)\n", checkpoint.name(),
               scores.loss, scores.at("accuracy"), scores.samples, seconds);
    std::fflush(stdout);
    lines_ += nlohmann::ordered_json{{"checkpoint", checkpoint.path.string()},
                                     {"model", flags_.model},
                                     {"loss", scores.loss},
                                     {"accuracy", scores.at("accuracy")},
                                     {"samples", scores.samples},
                                     {"weights_sha256", model_.weights_sha256()}}
                  .dump() +
              "\n";
    if (!flags_.json.empty()) write_file_atomically(flags_.json, lines_);
    if (!std::isfinite(scores.loss)) throw_not_finite(checkpoint, scores.loss);
  }

 private:
  [[noreturn]] void throw_not_finite(const Checkpoint& checkpoint, double loss) const {
    const std::string found = what_is_not_finite(state_of(*model_.modules().module(0)));
    throw Error(fmt::format(
        "{}: the test loss is {}: {}", checkpoint.path.string(),
        std::isnan(loss) ? "no number (NaN)" : "infinite",
        found.empty() ? "all weights are finite, so that the data, or the model with them, is not"
                      : found + "\n  the training has failed; an earlier checkpoint may be sound"));
  }

  const EvaluateFlags& flags_;
  const data::Dataset test_;
  Model model_;
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
    fmt::print("{}: was removed before it was read\n", checkpoint.name());
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
  const Millis idle_limit(static_cast<int64_t>(std::ceil(flags.idle_limit_s * 1000)));
  CheckpointFollower follower(flags.checkpoints);
  std::string trouble;
  int64_t count = 0;
  fmt::print("waiting for checkpoints in {}\n", flags.checkpoints);
  std::fflush(stdout);
  for (Deadline idle(idle_limit); !idle.passed(); std::this_thread::sleep_for(kPause)) {
    throw_if_stop_requested("evaluate");
    for (const Checkpoint& checkpoint : fresh_in(follower, trouble)) {
      if (!evaluated(evaluation, checkpoint)) continue;
      ++count;
      idle = Deadline(idle_limit);
      if (!checkpoint.is_last) continue;
      fmt::print("{} is the last of its job: {} checkpoints evaluated\n", checkpoint.name(), count);
      return 0;
    }
  }
  throw Timeout(
      fmt::format("no new checkpoint in {} for {} s, after {}; has its job failed?\n"
                  "  --idle-limit SECONDS waits longer",
                  flags.checkpoints, flags.idle_limit_s, count));
}

int evaluate(const EvaluateFlags& flags) {
  if (!flags.follow && checkpoints_in(flags.checkpoints).empty())
    throw UsageError(
        fmt::format("--checkpoints {}: no checkpoint is there; expected a safetensors file, a "
                    "snapshot, or a folder of such\n  --follow waits for one",
                    flags.checkpoints));
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  install_stop_handler();
  Evaluation evaluation(flags);
  return flags.follow ? follow(flags, evaluation) : evaluate_newest(flags, evaluation);
}

}  // namespace

void add_evaluate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* command = app.add_subcommand(
      "evaluate", "Test the checkpoints of a training, also while it goes on (--follow)");
  command->add_option("MODEL", flags->model, models::doodle_model_words())
      ->required()
      ->check(one_of("model", models::model_names()))
      ->type_name("");
  command->add_option("--data", flags->data, "Folder of doodles; its test samples count")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--checkpoints", flags->checkpoints,
                   "A safetensors file, or a folder that --out or --snapshots was given")
      ->required()
      ->check(some_name())
      ->type_name("PATH");
  command->add_flag("--follow", flags->follow,
                    "Each one that comes, until the job has written its last");
  command
      ->add_option("--idle-limit", flags->idle_limit_s,
                   "--follow: an error when none comes for so long")
      ->check(positive_number(kMostSeconds))
      ->type_name("SECONDS")
      ->capture_default_str();
  add_device_flags(*command, flags->devices);
  command->add_option("--threads", flags->threads, "Of LibTorch (default: usable cores)")
      ->check(whole_number(1, 1024))
      ->type_name("T");
  command->add_option("--json", flags->json, "File for the figures, an object a line")
      ->check(some_name())
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  tutti evaluate mlp --data examples/data/quickdraw --checkpoints runs/mlp\n"
      "  tutti evaluate mlp --data examples/data/quickdraw --checkpoints runs/mlp --follow --json "
      "mlp.json");
  command->callback([flags, &exit_code] { exit_code = evaluate(*flags); });
}

}  // namespace tutti::cli
