#include "tutti/cli/data/reading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/data/stroke_flags.h"
#include "tutti/cli/fields.h"
#include "tutti/data/hold_out.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/idx.h"
#include "tutti/data/sources/open_records.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/sources/text.h"
#include "tutti/data/transforms/strokes.h"
#include "tutti/data/transforms/transforms.h"
#include "tutti/train/report/progress.h"

namespace tutti::cli {
namespace {

namespace fs = std::filesystem;
namespace transforms = data::transforms;
using data::DataKind;
using data::Recognised;

constexpr int64_t kImageSize = 64;
constexpr int64_t kContext = 64;
constexpr int64_t kMostContext = 1 << 20;
constexpr int64_t kMostImageSize = 4096;
constexpr double kHeldOut = 0.1;
// Of the order whose end is held out: that of no training, so that seeds can be compared.
constexpr uint64_t kSplitSeed = 0x7A11DA7E;
// Of ImageNet's photos, which torchvision's networks are given.
const std::vector<double> kMeans = {0.485, 0.456, 0.406};
const std::vector<double> kDeviations = {0.229, 0.224, 0.225};

// What stands at --data, before anything is held out.
struct Opened {
  data::Dataset all;  // photos still encoded
  std::optional<data::Dataset> own_validation;
  std::string own_words;                 // where that is
  std::optional<data::Halves> halves{};  // of a table of which rows are held out; `all` is then the
                                         // first of them

  int64_t num_samples() const {
    return halves ? halves->train.num_samples() + halves->held_out.num_samples()
                  : all.num_samples();
  }
};

std::string counted(int64_t count, const char* what) {
  return fmt::format("{} {}{}", with_commas(static_cast<double>(count)), what,
                     count == 1 ? "" : "s");
}

data::HoldOutOptions held_out_of(double share) { return {.share = share, .seed = kSplitSeed}; }

// Flags that are for other kinds of data.
void check_flags(const std::string& path, const DataFlags& flags, const Recognised& found) {
  const auto refuse = [&](const std::string& flag, const char* what) {
    throw UsageError(fmt::format("{}: is for {}; {} has {}", flag, what, path, found.sentence));
  };
  const bool strokes = found.kind == DataKind::strokes;
  if (!is_photos(found.kind)) {
    if (flags.image_size > 0 && !strokes)
      refuse(fmt::format("--image-size {}", flags.image_size), "photos and drawings");
    if (flags.augment && !strokes) refuse("--augment", "photos and drawings");
  }
  if (!flags.strokes.empty() && !strokes) refuse("--strokes " + flags.strokes, "drawings");
  if (!flags.classes.empty() && !strokes) refuse("--classes " + flags.classes, "drawings");
  if (found.kind != DataKind::text) {
    if (flags.context > 0) refuse(fmt::format("--context {}", flags.context), "text");
    if (flags.stride > 0) refuse(fmt::format("--stride {}", flags.stride), "text");
  }
  if (found.kind != DataKind::csv) {
    if (!data::is_records(found.kind) && !flags.target.empty())
      refuse("--target " + flags.target, "tables and records");
    if (!flags.columns.empty()) refuse("--columns " + flags.columns[0], "tables");
    if (!flags.without.empty()) refuse("--without " + flags.without[0], "tables");
  }
  require_table(path, flags.table, found);
  if (!flags.validation.empty() && flags.validation_split > 0)
    throw UsageError("--validation-split with --validation: give one of them");
}

[[noreturn]] void refuse_kind(const std::string& path, const Recognised& found) {
  throw UsageError(fmt::format(
      "--data {}: {}\n  expected doodles (.npy), drawings of strokes, photos (a folder a class, or "
      "records of them), a table or IDX{}",
      path, found.sentence,
      found.kind == DataKind::text    ? "; text is for model gpt"
      : found.kind == DataKind::jsonl ? "; JSON lines want a program of your own "
                                        "(docs/guide/data.md)"
                                      : ""));
}

Opened open_doodles(const std::string& path, bool whole) {
  if (whole) return {data::quickdraw(path, {.split = "all"}), {}, ""};
  return {data::quickdraw(path, {.split = "train"}), data::quickdraw(path, {.split = "test"}),
          "the test split of " + path};
}

// t10k-images-idx3-ubyte.gz of train-images-idx3-ubyte.gz, packed or not.
std::optional<fs::path> test_file_of(const fs::path& train) {
  constexpr std::string_view kTrain = "train-", kTest = "t10k-", kPacked = ".gz";
  const std::string name = train.filename().string();
  if (!name.starts_with(kTrain)) return std::nullopt;
  std::string other = std::string(kTest) + name.substr(kTrain.size());
  for (int i = 0; i < 2; ++i) {
    std::error_code failure;
    fs::path file = train.parent_path() / other;
    if (fs::is_regular_file(file, failure)) return file;
    if (other.ends_with(kPacked))
      other.resize(other.size() - kPacked.size());
    else
      other += kPacked;
  }
  return std::nullopt;
}

Opened open_idx(const std::string& path, bool whole) {
  Opened opened{data::idx(path), {}, ""};
  if (const auto test = test_file_of(path); test && !whole) {
    opened.own_validation = data::idx(*test, {.classes = opened.all.classes()});
    opened.own_words = test->string();
  }
  return opened;
}

Opened open_table(const std::string& path, const DataFlags& flags, Recognised& found,
                  double held_out, DataSpec& spec) {
  data::CsvOptions options = csv_options(flags.table);
  options.without = flags.without;
  options.standardise = options.standardise_target = true;
  if (flags.target.empty()) {
    std::vector<std::string> names;
    for (const auto& column : data::table_spec(path, options).features)
      names.push_back(column.name);
    throw UsageError(fmt::format("--data {}: {}; --target COLUMN says what is predicted: {}", path,
                                 found.sentence, fmt::join(names, ", ")));
  }
  options.target = flags.target;
  options.columns = flags.columns;
  std::optional<data::Halves> halves;
  if (held_out > 0) {
    data::TableHalves table = data::csv_halves(path, options, held_out_of(held_out));
    spec.table = std::move(table.spec);
    halves = data::Halves{std::move(table.train), std::move(table.held_out)};
  } else {
    spec.table = data::table_spec(path, options);
  }
  if (spec.table->features.empty())
    throw UsageError(
        fmt::format("--target {}: {} has no other column to predict it by", flags.target, path));
  if (spec.table->target->vocabulary.size() == 1)
    throw UsageError(fmt::format("--target {}: is \"{}\" in all rows of {}: nothing to learn",
                                 flags.target, spec.table->target->vocabulary[0], path));
  Opened opened{halves ? halves->train : data::csv(path, *spec.table), {}, "", std::move(halves)};
  found.sentence += words_that_repeat_not(*spec.table, opened.num_samples());
  found.sentence += "\ncolumns: " + column_words(*spec.table);
  return opened;
}

// Photos in records: the columns that are taken are said aloud.
Opened open_photo_records(const std::string& path, const DataFlags& flags, Recognised& found,
                          DataSpec& spec) {
  const data::PhotoColumns columns = data::photo_columns(path);
  if (columns.images.size() == 1 && columns.labels.size() > 1 && flags.target.empty())
    throw UsageError(fmt::format("--data {}: {}; --target COLUMN says which is the label: {}", path,
                                 found.sentence, fmt::join(columns.labels, ", ")));
  spec.label = flags.target;
  Opened opened{open_photos(found.kind, path, flags.target), {}, ""};
  found.sentence += fmt::format("; photos of {}, labels of {}, {} classes", columns.images[0],
                                flags.target.empty() ? columns.labels[0] : flags.target,
                                opened.all.num_classes());
  return opened;
}

// Windows of the text that are trained on; what is tested on is its end, each character once.
Opened open_text(const std::string& path, const DataFlags& flags, bool whole) {
  data::TextOptions options{.length = flags.context > 0 ? flags.context : kContext,
                            .stride = flags.stride};
  if (whole && flags.validation_split == 0) return {data::text(path, options), {}, ""};
  const double share = flags.validation_split > 0 ? flags.validation_split : kHeldOut;
  options.end = 1 - share;
  data::TextOptions held_out{.length = options.length, .begin = options.end};
  return {data::text(path, options), data::text(path, held_out),
          fmt::format("the last {:.4g} % of {}", share * 100, path)};
}

// `whole`: with what the data itself calls its test samples.
Opened open_data(const std::string& path, const DataFlags& flags, Recognised& found, bool whole,
                 double held_out, DataSpec& spec) {
  switch (found.kind) {
    case DataKind::quickdraw: return open_doodles(path, whole);
    case DataKind::idx: return open_idx(path, whole);
    case DataKind::csv: return open_table(path, flags, found, held_out, spec);
    case DataKind::strokes:
      return {data::strokes(path, {.classes = stroke_classes(flags.classes)}), {}, ""};
    case DataKind::text:
      if (flags.as_text) return open_text(path, flags, whole);
      refuse_kind(path, found);
    case DataKind::image_folder: return {open_photos(found.kind, path), {}, ""};
    case DataKind::tfrecord:
    case DataKind::webdataset:
    case DataKind::mds: return open_photo_records(path, flags, found, spec);
    default: refuse_kind(path, found);
  }
}

std::vector<std::string> names_of(const std::vector<data::TransformHandle>& all) {
  std::vector<std::string> names;
  for (const auto& transform : all) names.push_back(transform->name());
  return names;
}

// The middle of a photo, of which an eighth is cut off: 224 of 256.
std::vector<std::string> plain_transforms(int64_t size) {
  return names_of({transforms::decode_center_crop(size * 8 / 7, size),
                   transforms::normalize(kMeans, kDeviations)});
}

std::vector<std::string> augmenting_transforms(int64_t size) {
  return names_of({transforms::decode_crop(size), transforms::random_horizontal_flip(),
                   transforms::normalize(kMeans, kDeviations)});
}

data::Halves halves_of(const Opened& opened, double share) {
  if (opened.halves) return *opened.halves;
  return said_of("--validation-split",
                 [&] { return data::hold_out(opened.all, held_out_of(share)); });
}

}  // namespace

void add_pipeline_flags(Command& command, DataFlags& flags) {
  command.add("--image-size", "PIXELS", &flags.image_size, whole_number(1, kMostImageSize),
              fmt::format("Photos, drawings: height and width in pixels (default: {}; of drawings "
                          "28)",
                          kImageSize));
  command.flag(
      "--augment", &flags.augment,
      "Photos: another crop in every epoch, mirrored at random, to train on; drawings: drawn "
      "otherwise");
  add_stroke_flags(command, flags.strokes, flags.classes);
  command.add("--target", "COLUMN", &flags.target, some_name(),
              "Tables: the column to predict, a number or a class; all others are features. Photos "
              "in records: the column of the class, where more than one may be it");
  command
      .add("--columns", "COLUMNS", &flags.columns, some_name(),
           "Tables: the columns that are features, in this order (default: all others)")
      .several = Several::commas;
  command
      .add("--without", "COLUMNS", &flags.without, some_name(),
           "Tables: columns that are no features")
      .several = Several::commas;
  add_table_flags(command, flags.table);
}

void add_text_flags(Command& command, DataFlags& flags) {
  command.group = "Data";
  command.add("--context", "CHARACTERS", &flags.context, whole_number(1, kMostContext),
              fmt::format("Text: characters of a sample, all that the model sees of what stands "
                          "before the next one (default: {})",
                          kContext));
  command.add("--stride", "CHARACTERS", &flags.stride, whole_number(1, kMostContext),
              "Text: characters from one sample to train on to the next (default: the context; "
              "1: every one begins a sample)");
  command.group = "Options";
}

void add_data_flags(Command& command, DataFlags& flags) {
  command.group = "Data";
  command.add("--validation", "PATH", &flags.validation, some_name(),
              "Data to test on after each epoch, of the same kind (default: of doodles their "
              "test split, of IDX t10k-*, else a share of --data)");
  command.add("--validation-split", "SHARE", &flags.validation_split,
              number_between(1e-6, 1 - 1e-6),
              fmt::format("Share of --data to test on instead, the same whatever the seed "
                          "(default, where there is no other: {})",
                          kHeldOut));
  add_pipeline_flags(command, flags);
  command.group = "Options";
}

void add_loader_flags(Command& command, LoaderFlags& flags) {
  command.group = "Loader";
  command.add("--workers", "N", &flags.workers, some_name(),
              "Threads that make batches ahead of the step: auto (as few as keep up) or 0 to "
              "256; 0: none, each step reads its own");
  command.add("--loader-memory", "MIB", &flags.memory_mib, whole_number(1, int64_t{1} << 24),
              "The most that batches made ahead may take");
  command.add("--ahead", "BATCHES", &flags.ahead, whole_number(1, 1'000'000),
              "Batches made ahead (default: what memory holds, to 16)");
  command.add("--on-bad", "ANSWER", &flags.on_bad, some_name(),
              "Damaged samples: error, or replace[:SHARE] by others, counted and listed, up to "
              "that share of an epoch (0.001)");
  command.group = "Options";
}

data::LoaderOptions loader_options(const LoaderFlags& flags) {
  data::LoaderOptions options{.memory = flags.memory_mib << 20};
  if (flags.ahead > 0) options.ahead = flags.ahead;
  if (flags.workers != "auto") {
    const auto workers = number_in<int64_t>(flags.workers);
    if (!workers || *workers < 0 || *workers > 256)
      throw UsageError(
          fmt::format("--workers: got \"{}\"; expected auto or a whole number, 0 to "
                      "256",
                      flags.workers));
    options.workers = static_cast<int>(*workers);
  }
  if (flags.on_bad == "error") return options;
  const std::string answer = flags.on_bad.substr(0, flags.on_bad.find(':'));
  if (answer != "replace")
    throw UsageError("--on-bad: " + unknown_message("answer", answer,
                                                    std::vector<std::string>{"error", "replace"}));
  data::ReplaceOptions replace;
  if (answer.size() < flags.on_bad.size()) {
    const auto share = number_in<double>(flags.on_bad.substr(answer.size() + 1));
    if (!share || !(*share >= 0 && *share <= 1))
      throw UsageError(
          fmt::format("--on-bad: got \"{}\"; expected a share, 0 to 1, as in "
                      "replace:0.01",
                      flags.on_bad));
    replace.at_most = *share;
  }
  options.on_bad = data::replace(replace);
  return options;
}

namespace {

// What is at a path, and what is to become of it.
struct Pipeline {
  Opened opened;
  DataSpec spec;
  std::vector<std::string> training_transforms;
  std::string sentence;

  data::Dataset for_training(const data::Dataset& dataset) const {
    return mapped(dataset, training_transforms);
  }
};

// `held_out`: the share of samples that are not to be trained on, where the data has none itself.
Pipeline open_pipeline(const std::string& path, const DataFlags& flags, bool whole,
                       double held_out) {
  Recognised found = flags.as_text ? Recognised{.kind = DataKind::text, .sentence = "text"}
                                   : recognise(path, flags.table);
  if (found.kind == DataKind::unknown) refuse_kind(path, found);
  check_flags(path, flags, found);
  DataSpec spec{.kind = found.kind};
  Opened opened = open_data(path, flags, found, whole, held_out, spec);
  Pipeline pipeline{
      std::move(opened), std::move(spec), {}, fmt::format("data: {}: {}", path, found.sentence)};
  pipeline.spec.classes = pipeline.opened.all.classes();
  if (is_photos(found.kind)) {
    const int64_t size = flags.image_size > 0 ? flags.image_size : kImageSize;
    pipeline.spec.transforms = plain_transforms(size);
    pipeline.training_transforms =
        flags.augment ? augmenting_transforms(size) : pipeline.spec.transforms;
  }
  if (found.kind == DataKind::strokes) {
    pipeline.spec.transforms = pipeline.training_transforms =
        stroke_transforms(flags.strokes, flags.image_size);
    if (flags.augment)
      pipeline.training_transforms.insert(pipeline.training_transforms.begin(),
                                          transforms::random_strokes()->name());
  }
  pipeline.spec.shape = pipeline.for_training(pipeline.opened.all).columns().at(0).shape;
  return pipeline;
}

}  // namespace

TrainData open_train_data(const std::string& path, const DataFlags& flags) {
  const bool whole = !flags.validation.empty() || flags.validation_split > 0;
  const double share = !flags.validation.empty()    ? 0
                       : flags.validation_split > 0 ? flags.validation_split
                                                    : kHeldOut;
  const Pipeline pipeline = open_pipeline(path, flags, whole, share);
  const auto& [opened, spec, unused, sentence] = pipeline;
  static_cast<void>(spec.to_json());  // written when steps are done: what it refuses is refused now
  const auto with = [&](const data::Dataset& train, const data::Dataset& validation,
                        const std::string& words) {
    return TrainData{
        pipeline.for_training(train), validation, spec, {sentence, "validation: " + words}};
  };
  if (!flags.validation.empty())
    return with(opened.all, open_as(spec, flags.validation), flags.validation);
  if (opened.own_validation) return with(opened.all, *opened.own_validation, opened.own_words);
  const data::Halves halves = halves_of(opened, share);
  return with(halves.train, mapped(halves.held_out, spec.transforms),
              fmt::format("{} of {}, the same in every training",
                          with_commas(static_cast<double>(halves.held_out.num_samples())),
                          counted(opened.num_samples(), "sample")));
}

TrainData open_to_read(const std::string& path, const DataFlags& flags) {
  const Pipeline pipeline = open_pipeline(path, flags, true, 0);
  const auto all = pipeline.for_training(pipeline.opened.all);
  return {all, all, pipeline.spec, {pipeline.sentence}};
}

}  // namespace tutti::cli
