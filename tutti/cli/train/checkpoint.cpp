// tutti checkpoint: lists, verifies and converts the checkpoints of trainings.
#include "tutti/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/printable.h"
#include "tutti/base/standard_streams.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {
namespace {

struct CheckpointFlags {
  std::string place;
  std::string to;
  std::string json;
};

// `place` is a checkpoint, a folder of some, or the --out of a training. The oldest first.
std::vector<std::filesystem::path> found_in(const std::filesystem::path& place) {
  if (is_training(place)) return {place};
  for (const auto& folder : {place, place / "checkpoints"})
    if (auto found = trainings_in(folder); !found.empty()) return found;
  throw UsageError(fmt::format(
      "{}: no checkpoint there; expected one (step-...), a folder of them, or the --out of a "
      "training",
      place.string()));
}

std::string name_words(const std::filesystem::path& path) {
  return printable(path.filename().string());
}

int64_t bytes_of(const CheckpointManifest& manifest) {
  int64_t bytes = 0;
  for (const CheckpointFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

std::string value_words(const CheckpointManifest& manifest) {
  std::string words;
  for (const char* name : {"train_loss", "val_loss", "val_accuracy"})
    if (const auto value = manifest.values.find(name); value != manifest.values.end())
      words += fmt::format("  {} {:.4f}", name, value->second);
  return words;
}

// Prints it; the same as JSON.
OrderedJson row_of(const TrainingCheckpoint& checkpoint) {
  const CheckpointManifest& m = checkpoint.manifest();
  // Of a loop of one's own only that knows its epochs.
  const std::string place = m.loop.empty() ? fmt::format("{:>5} {:>6} / {:<4}", m.epoch + 1,
                                                         m.step_in_epoch, m.steps_per_epoch)
                                           : fmt::format("{:>5} {:>6}   {:<4}", "-", "-", "");
  fmt::print("{:<20} {} {:>9.1f}  {:<14}{}\n", name_words(checkpoint.path()), place,
             static_cast<double>(bytes_of(m)) / 1e6,
             printable(fmt::format("{} x{}", m.strategy, m.replicas)), value_words(m));
  return {{"path", checkpoint.path().string()},
          {"step", m.step},
          {"epoch", m.epoch},
          {"step_in_epoch", m.step_in_epoch},
          {"bytes", bytes_of(m)},
          {"strategy", m.strategy},
          {"replicas", m.replicas},
          {"values", m.values}};
}

int list(const CheckpointFlags& flags) {
  OrderedJson all = OrderedJson::array();
  fmt::print("{:<20} {:>5} {:>13} {:>9}  {:<14} {}\n", "checkpoint", "epoch", "step of epoch", "MB",
             "strategy", "last epoch");
  for (const auto& path : found_in(flags.place)) {
    try {
      all.push_back(row_of(TrainingCheckpoint(path)));
    } catch (const DataError& error) {
      fmt::print("{:<20} DAMAGED: {}\n", name_words(path), plain_words(error.what()));
      all.push_back({{"path", path.string()}, {"damaged", error.what()}});
    }
  }
  if (!flags.json.empty()) write_file_atomically(flags.json, dump_json(all, 2) + "\n");
  return 0;
}

int verify(const CheckpointFlags& flags) {
  int damaged = 0;
  for (const auto& path : found_in(flags.place)) {
    try {
      const TrainingCheckpoint checkpoint(path);
      checkpoint.verify();
      fmt::print("{}: whole, {} files, {:.1f} MB\n", name_words(path),
                 checkpoint.manifest().files.size(),
                 static_cast<double>(bytes_of(checkpoint.manifest())) / 1e6);
    } catch (const DataError& error) {
      ++damaged;
      fmt::print("{}: DAMAGED: {}\n", name_words(path), plain_words(error.what()));
    }
    std::fflush(stdout);
  }
  return damaged == 0 ? 0 : 1;
}

void warn_of_tables(const CheckpointManifest& manifest, const std::string& to) {
  if (manifest.tables.empty()) return;
  std::vector<std::string> tables;
  for (const std::string& words : manifest.tables) tables.push_back(printable(words));
  log(LogLevel::warning,
      "{} has no rows of embedding tables; Model::load and fit() take them from the checkpoint:"
      "\n  {}",
      printable(to), fmt::join(tables, "\n  "));
}

int convert(const CheckpointFlags& flags) {
  const std::filesystem::path to = flags.to;
  if (to.extension() != ".safetensors")
    throw UsageError(
        fmt::format("checkpoint convert: {}: expected a name that ends in "
                    ".safetensors, which PyTorch and NumPy read by the package "
                    "safetensors",
                    flags.to));
  require_writable(to, "checkpoint convert");
  const TrainingCheckpoint checkpoint(found_in(flags.place).back());
  checkpoint.verify();
  const auto weights = weights_of(checkpoint);
  data::write_safetensors(to, weights, {{"format", "pt"}});
  warn_of_tables(checkpoint.manifest(), flags.to);
  say("{}: {} tensors of {}, step {}\n", printable(flags.to), weights.size(),
      name_words(checkpoint.path()), checkpoint.manifest().step);
  return 0;
}

}  // namespace

void add_checkpoint(Command& program) {
  auto flags = std::make_shared<CheckpointFlags>();
  Command& group =
      program.command("checkpoint", "List, verify and convert the checkpoints of trainings");
  const auto add = [&](const char* name, const char* what,
                       int (*run)(const CheckpointFlags&)) -> Command& {
    Command& command = group.command(name, what);
    command.place("PLACE", &flags->place, {},
                  "A checkpoint (step-...), a folder of them, or the --out of a training");
    command.action = [flags, run] { return run(*flags); };
    return command;
  };
  add("ls", "What there is, the oldest first", list)
      .add("--json", "FILE", &flags->json, some_name(), "File for the same as JSON");
  add("verify", "Reads every file against its digest; exit code 1 when one is damaged", verify);
  add("convert", "Weights of the newest as a safetensors file, as `tutti train` saves them",
      convert)
      .place("FILE", &flags->to, {}, "NAME.safetensors");
  group.footer =
      "Examples:\n"
      "  tutti checkpoint ls runs/cnn\n"
      "  tutti checkpoint verify runs/cnn\n"
      "  tutti checkpoint convert runs/cnn weights.safetensors";
}

}  // namespace tutti::cli
