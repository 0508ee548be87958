/// History: what Model::fit measured, epoch by epoch. Prints as a table, is saved as CSV,
/// drawn as SVG.
/// Thread rule: a plain value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/loader/loader.h"

namespace tutti {

/// One column a quantity, one row an epoch. Columns are "train_loss", the metrics ("accuracy"),
/// "noise_scale" where it is measured, then losses and metrics of the validation data as
/// "val_loss", "val_accuracy", last "seconds" and "images_per_second" of the training part.
struct History {
  std::vector<std::string> columns;
  std::vector<std::vector<double>> rows;

  int64_t first_epoch = 0;   ///< of rows[0], from 0
  int64_t steps = 0;         ///< updates in all
  int64_t images = 0;        ///< samples trained on in all, repeats counted
  double train_seconds = 0;  ///< wall time of the training parts, without set-up and validation
  double validation_seconds = 0;
  std::vector<float> step_ms;  ///< wall time of each step, reading its data included
  data::LoaderReport
      input{};  ///< of this worker: who waited for batches, and which stage took long
  /// The gradient noise scale at the end, in samples: beyond such a batch more samples a step stop
  /// paying. NaN: not measured (Measures::noise_scale), or unknown (NoiseScale::value).
  double noise_scale = std::numeric_limits<double>::quiet_NaN();
  /// Files that callbacks could not write (a full disk), and the last checkpoint where it is not on
  /// disk, in words; on the chief's worker.
  std::vector<std::string> lost;

  /// images / train_seconds; 0 before the first step.
  double images_per_second() const noexcept;

  /// The step time that a share `fraction` (0 to 1) of all steps does not exceed; 0 without steps.
  double step_ms_percentile(double fraction) const;

  /// One quantity over the epochs. Throws UsageError with the nearest known column.
  std::vector<double> column(std::string_view name) const;
  /// Its value in the last epoch.
  double last(std::string_view name) const;

  /// Of the epoch of a row, from 1.
  int64_t number_of(size_t row) const noexcept {
    return first_epoch + static_cast<int64_t>(row) + 1;
  }

  /// The table for people: a line a epoch.
  std::string to_string() const;
  /// "epoch,train_loss,...": the first epoch is 1, numbers as short as they read back exactly.
  std::string to_csv() const;
  /// Writes to_csv() atomically.
  void save_csv(const std::filesystem::path& path) const;
  /// Draws the losses and, below them, the metrics over the epochs, as an SVG that stands alone;
  /// numbers that are not finite are gaps. Written atomically. Throws UsageError for a path that
  /// does not end in .svg and before the first epoch has ended.
  void plot(const std::filesystem::path& path) const;
};

}  // namespace tutti
