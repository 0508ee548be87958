/// DataSpec: what a trained model takes and says, saved beside its weights as data.json, so that
/// `tutti evaluate` and `tutti predict` prepare samples as the training did. Without LibTorch.
/// docs/formats/data_spec.md has the fields.
/// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/table_spec.h"
#include "tutti/models/gpt.h"
#include "tutti/train/losses/losses.h"
#include "tutti/train/metrics/metrics.h"

namespace tutti::cli {

/// Whether it is photos with classes: in folders, or in records.
bool is_photos(data::DataKind kind) noexcept;

/// Photos, still encoded, with classes: these, or, where empty, those that are there.
data::Dataset open_photos(data::DataKind kind, const std::filesystem::path& path,
                          const std::string& label = {},
                          const std::vector<std::string>& classes = {});

struct DataSpec {
  data::DataKind kind = data::DataKind::unknown;
  std::vector<std::string> classes{};     ///< by label; empty: a number is predicted; of text the
                                          ///< characters
  std::vector<int64_t> shape{};           ///< of a sample, as the network takes it
  std::vector<std::string> transforms{};  ///< names, in order: what makes a sample of a photo
  std::optional<data::TableSpec> table{};
  std::string label{};              ///< of records: the column; empty: the only one that could be
  std::string model{};              ///< that was trained; empty: not known
  std::vector<std::string> lora{};  ///< adapters that were trained, as --lora has them
  std::optional<models::GptOptions> gpt{};  ///< of text: the model that reads it

  bool of_photos() const noexcept { return is_photos(kind); }
  bool of_text() const noexcept { return kind == data::DataKind::text; }

  bool predicts_number() const noexcept { return classes.empty(); }
  /// Where a number is predicted: its column, with the scaling.
  const data::TableColumn& target() const { return *table->target; }

  std::string to_json() const;
  /// Throws DataError, with `where`, for what is no such JSON.
  static DataSpec from_json(std::string_view text, const std::string& where);
};

inline constexpr const char* kDataSpecFile = "data.json";

/// The one beside weights: in their folder, or the one above where these are a checkpoint's. None:
/// it was not saved. Throws what from_json() does.
std::optional<DataSpec> spec_beside(const std::filesystem::path& weights);

/// Opens other data of the same kind, labelled as the first; photos in folders or in records are
/// one kind. Photos are decoded when a batch is read. Throws UsageError for data of another kind,
/// and what the source does.
/// `header`: whether a table's first line names its fields; unset: as the first's did.
data::Dataset open_as(const DataSpec& spec, const std::filesystem::path& path,
                      std::optional<bool> header = {});

/// Throws UsageError where `dataset`, of `path`, has other classes.
void require_same_classes(const DataSpec& spec, const data::Dataset& dataset,
                          const std::filesystem::path& path);

/// Throws UsageError where `weights` are another model's.
void require_same_model(const DataSpec& spec, const std::string& model, const std::string& weights);

/// The model that `weights` are of: the one that was typed, or, where that is "", what `spec`,
/// which lies beside them, says. Throws UsageError where they are another model's, or neither names
/// one.
std::string model_of_weights(const std::optional<DataSpec>& spec, const std::string& typed,
                             const std::string& weights);

/// `dataset`, each sample through all of them.
data::Dataset mapped(data::Dataset dataset, const std::vector<std::string>& transforms);

/// What such a network is trained and tested with: accuracy; of text perplexity; of a number
/// mean_absolute_error, in the target's own unit.
Loss loss_for(const DataSpec& spec);
Metric metric_for(const DataSpec& spec);

/// A value of that metric: "0.9125", "48213.2".
std::string figure_words(const DataSpec& spec, double value);

/// |output - target| on the mean, times `scale`. Named "mean_absolute_error".
Metric scaled_absolute_error(double scale);

/// `metric`, one number, times `scale`.
Metric scaled(const Metric& metric, double scale);

}  // namespace tutti::cli
