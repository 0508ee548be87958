/// CheckpointManifest: what a checkpoint says of itself, as JSON (docs/formats/checkpoint.md).
///
/// Whoever holds one that was read may compute with its numbers: they are in their ranges. Without
/// LibTorch. Thread rule: a plain value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/store/file_facts.h"

namespace tutti {

/// The most that steps, epochs, samples and the like can be: all are exact as doubles, too.
inline constexpr int64_t kMostCounted = int64_t{1} << 53;

/// A file of a checkpoint, and what it must be.
using CheckpointFile = store::FileFacts;

/// Where a training was, and what it was.
struct CheckpointManifest {
  int64_t step = 0;           ///< updates of this training
  int64_t version = 0;        ///< of the optimizer: with those of trainings before
  int64_t epoch = 0;          ///< that goes on, from 0
  int64_t step_in_epoch = 0;  ///< steps of it that are done
  bool ended = false;         ///< a callback ended the training here

  // What decides on the order of samples, and on bits.
  uint64_t seed = 0;
  int64_t global_batch = 0;
  int64_t accumulate = 1;
  int64_t num_samples = 0;
  int64_t steps_per_epoch = 0;
  std::string strategy;
  int replicas = 1;
  int workers = 1;
  std::string reduction_shape;
  std::string mesh;       ///< on which several ranks compute a replica; "": it is not written
  int microbatches = 1;   ///< of a replica's part of a batch; 1: it is not written
  int tensor_blocks = 1;  ///< that layers were cut into; 1: it is not written
  int threads_per_replica = 1;
  std::string dense_kernel = "blas";  ///< that multiplied matrices; one that was not written: blas

  std::string samples_sha256;  ///< of the first few of epoch 0
  /// Of samples of epoch 0 from the first to the last, and of the validation data's; "": there is
  /// none, or the checkpoint is of a version that did not look at them.
  std::string data_sha256;
  std::string validation_sha256;
  /// What the replicas' shares were asked to be: "equal", "2, 1", "by speed", or "file" with the
  /// digest of what it says; "": of a version that did not say.
  std::string given_shares;

  std::string optimizer;          ///< UpdaterState::kind
  std::string optimizer_options;  ///< in words; those of a torch optimizer are in its state
  double learning_rate = 0;
  std::string compression;             ///< of gradients, in words
  std::string schedule;                ///< its name; "": none
  std::vector<double> schedule_rates;  ///< at some steps
  std::string losses;                  ///< with their weights, metrics and class_weight
  std::string precision;
  std::vector<std::string> metrics;
  std::vector<std::string> tables;  ///< embedding tables, in words; none: it is not written

  // History so far.
  std::vector<std::string> columns;
  int64_t first_epoch = 0;
  int64_t images = 0;
  double train_seconds = 0;
  double validation_seconds = 0;
  /// Of the last epoch that ended, without those that are not finite.
  std::map<std::string, double> values;

  /// What parts of the training remember beside tensors, by their names, as JSON: each knows its
  /// own (docs/formats/checkpoint.md). A training goes on from one with the same parts alone.
  std::map<std::string, std::string> kept;

  /// Of a loop of one's own: what it keeps, by its names, each in words ("int64", "optimizer
  /// adam"); it knows no epochs and samples, whose fields are as they stand here. Empty: of fit(),
  /// and not written.
  std::map<std::string, std::string> loop;

  std::string lives;  ///< of the job that wrote it (id_of_all_lives()); "": it is not written

  std::string tutti_version;
  std::string libtorch_version;
  std::vector<CheckpointFile> files;
  std::map<std::string, std::string> places;  ///< of each tensor: its file

  std::string to_json() const;
  /// Throws DataError naming `path` (the checkpoint), the field, what was got and expected: when it
  /// is no manifest, is not what was written, or says what no training can have been: a type, a
  /// range, numbers that contradict each other, a file that is not one of the checkpoint's own.
  /// UsageError when it is one of another format.
  static CheckpointManifest from_json(std::string_view text, const std::filesystem::path& path);
};

}  // namespace tutti
