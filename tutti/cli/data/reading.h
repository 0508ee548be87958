/// The data of `tutti train`, as its flags say: opened by what lies there, with what is held out
/// for validation, and the pipeline that makes samples of it. Without LibTorch.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/cli/data/spec.h"
#include "tutti/cli/data/table_flags.h"
#include "tutti/data/dataset.h"
#include "tutti/data/loader/loader.h"

namespace tutti::cli {

struct Command;

/// What was typed beside --data; unset is empty or 0.
struct DataFlags {
  std::string validation;
  double validation_split = 0;
  int64_t image_size = 0;
  bool augment = false;
  std::string strokes;  ///< a transform, by its name
  std::string classes;  ///< of drawings: "kaggle"
  std::string target;
  std::vector<std::string> columns, without;
  TableFlags table;
  bool as_text = false;  ///< not typed: the model reads any file as text
  int64_t context = 0;
  int64_t stride = 0;
};

struct LoaderFlags {
  std::string workers = "auto";
  int64_t memory_mib = 1024;
  int64_t ahead = 0;
  std::string on_bad = "error";
};

/// Describe the flags on `command`; add_pipeline_flags() those that say what a sample is made of,
/// add_text_flags() those of text.
void add_data_flags(Command& command, DataFlags& flags);
void add_pipeline_flags(Command& command, DataFlags& flags);
void add_text_flags(Command& command, DataFlags& flags);
void add_loader_flags(Command& command, LoaderFlags& flags);

/// Throws UsageError, which names the flag.
data::LoaderOptions loader_options(const LoaderFlags& flags);

struct TrainData {
  data::Dataset train, validation;     ///< neither shuffled nor batched
  DataSpec spec;                       ///< of what a network is given, without augmentation
  std::vector<std::string> sentences;  ///< to be said aloud: what was found, what is held out
};

/// What is at `path` is recognised: doodles, drawings of strokes, photos (in folders or records),
/// IDX or a table, or taken for text. Validation is, in this order,
/// --validation, --validation-split, what the data has itself (of doodles the test split, of IDX
/// t10k-*), or a tenth. Samples that are held out are drawn once and for all, whatever the seed of
/// the training; of text they are its end. Means and
/// deviations of a table are those of the rows to train on. Throws UsageError for flags that do not
/// fit the data, and what the sources do.
TrainData open_train_data(const std::string& path, const DataFlags& flags);

/// The same with nothing held out: `validation` is all of it, too.
TrainData open_to_read(const std::string& path, const DataFlags& flags);

}  // namespace tutti::cli
