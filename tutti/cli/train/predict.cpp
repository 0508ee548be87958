// tutti predict: what a trained model says of photos, rows of tables, images, doodles and drawings.
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/base/suggest.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/spec.h"
#include "tutti/cli/data/table_flags.h"
#include "tutti/cli/on_all_cores.h"
#include "tutti/cli/results.h"
#include "tutti/cli/train/checkpoints.h"
#include "tutti/cli/train/device_flags.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/network.h"
#include "tutti/cli/train/network_module.h"
#include "tutti/cli/train/submission.h"
#include "tutti/cli/train/text_models.h"
#include "tutti/data/detail/doodles.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/idx.h"
#include "tutti/data/sources/open_records.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/records.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/transforms/strokes.h"
#include "tutti/data/transforms/transforms.h"
#include "tutti/models/models.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/model.h"

namespace tutti::cli {
namespace {

using data::DataKind;

// Of Google's bitmaps: 28 pixels for a drawing of 256 in a border of 24, lines of 16. The border of
// strokes_to_bitmap() is narrower, by the pixels that are put around it.
constexpr int64_t kBitmapSide = 28, kBitmapBorder = 1;
constexpr double kBitmapLine = 16.0 * kBitmapSide / (256 + 2 * 24);

// Photos that are decoded, and then computed, at once.
constexpr size_t kPhotosAtOnce = 256;

struct PredictFlags {
  std::string model;
  std::string weights;
  std::vector<std::string> files;
  int64_t top = 1;
  int64_t threads = 0;
  DeviceFlags devices;
  TableFlags table;
  std::string json;
  std::string submission;
};

StrategyOptions strategy_options(const PredictFlags& flags) {
  StrategyOptions options{.threads_per_replica = static_cast<int>(flags.threads), .alone = true};
  take_devices(flags.devices, options);
  if (several_devices(flags.devices)) options.kind = "mirrored";
  if (!flags.devices.plugin.empty()) options.kind = "tpu";
  return options;
}

DataSpec spec_of(const PredictFlags& flags) {
  if (checkpoints_in(flags.weights).empty())
    throw UsageError(fmt::format(
        "--weights {}: no weights are there; expected a safetensors file, or the folder "
        "that --out of tutti train was given",
        flags.weights));
  if (auto spec = spec_beside(flags.weights)) {
    if (spec->of_text())
      throw UsageError(fmt::format(
          "--weights {}: is a model of text; tutti generate {} --prompt TEXT lets it write",
          flags.weights, flags.weights));
    spec->model = model_of_weights(spec, flags.model, flags.weights);
    return *std::move(spec);
  }
  throw UsageError(fmt::format(
      "--weights {}: there is no {} beside it, which says what becomes of files; tutti train --out "
      "DIR writes it",
      flags.weights, kDataSpecFile));
}

bool is_strokes(const std::string& file) { return data::recognise(file).kind == DataKind::strokes; }

// float32 [rows, 1, 28, 28] in 0..1, as quickdraw() has them.
at::Tensor doodles_in(const std::string& file) {
  const Array ink = data::detail::read_doodles(file);
  return tensor_of(ink).to(at::kFloat).mul_(1.0F / 255.0F).reshape({-1, 1, 28, 28});
}

class Prediction {
 public:
  explicit Prediction(const PredictFlags& flags)
      : flags_(flags),
        spec_(spec_of(flags)),
        network_(network_beside(spec_, flags.model, flags.weights)),
        model_(Strategy(strategy_options(flags)), [&] { return made_of(network_); }) {
    for (const std::string& name : spec_.transforms)
      transforms_.push_back(data::transforms::by_name(name));
    if (flags.top > 1 && flags.top > std::max<int64_t>(1, std::ssize(spec_.classes)))
      throw UsageError(
          spec_.predicts_number()
              ? fmt::format("--top {}: a number is predicted", flags.top)
              : fmt::format("--top {}: there are {} classes", flags.top, spec_.classes.size()));
    if (!flags.table.header.empty() && spec_.kind != DataKind::csv)
      throw UsageError(fmt::format("--header {}: is for tables; the model was trained on {}",
                                   flags.table.header, data::name_of(spec_.kind)));
    if (!flags.submission.empty()) check_submission();
    model_.load(checkpoints_in(flags.weights).back().path);
  }

  /// Returns the exit code: 1 where a file could not be read.
  int run() {
    if (!flags_.submission.empty())
      submit();
    else if (spec_.of_photos())
      predict_photos();
    else
      for (const std::string& file : flags_.files) attempt([&] { predict_rows(file); });
    if (!flags_.json.empty()) write_file_atomically(flags_.json, lines_);
    return failed_ ? 1 : 0;
  }

 private:
  // What is wrong with one file keeps no other from being predicted.
  template <class Work>
  void attempt(Work work) {
    throw_if_stop_requested("predict");
    try {
      work();
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  void fail(const std::string& why) {
    std::fflush(stdout);
    say_to(stderr, "tutti predict: {}\n", printable(why));
    failed_ = true;
  }

  void check_submission() const {
    if (spec_.kind != DataKind::quickdraw && spec_.kind != DataKind::strokes)
      throw UsageError(fmt::format("--submission {}: is for doodles; the model was trained on {}",
                                   flags_.submission, data::name_of(spec_.kind)));
    if (flags_.top > Submission::kMostWords)
      throw UsageError(fmt::format("--top {} with --submission {}: a row has at most {} words",
                                   flags_.top, flags_.submission, Submission::kMostWords));
  }

  // All drawings are read before the first is predicted: what is damaged would have no row.
  void submit() {
    Submission submission(spec_.classes);
    if (const auto sentence = words_without_a_class(spec_.classes); !sentence.empty())
      log(LogLevel::warning, "--submission {}: {}", flags_.submission, sentence);
    std::vector<data::Dataset> files;
    for (const std::string& file : flags_.files) {
      const data::KeyedStrokes found = drawings_to_submit(file);
      submission.expect(found.keys, found.where);
      files.push_back(as_trained(found.drawings));
    }
    for (const data::Dataset& drawings : files) {
      throw_if_stop_requested("predict");
      submit(model_.predict(drawings.batch(kTestBatch)), submission);
    }
    write_file_atomically(flags_.submission, submission.text());
    print_line("{}: {} drawings, {} word{} each", flags_.submission, submission.num_said(),
               flags_.top, flags_.top == 1 ? "" : "s");
  }

  // Of equal outputs the first label comes first, as the metrics have it.
  void submit(const at::Tensor& outputs, Submission& submission) const {
    const at::Tensor finite = at::isfinite(outputs).all(1);
    const at::Tensor labels = at::argsort(outputs, /*stable=*/true, 1, /*descending=*/true)
                                  .narrow(1, 0, flags_.top)
                                  .contiguous();
    for (int64_t row = 0; row < outputs.size(0); ++row) {
      if (!finite[row].item<bool>())
        throw DataError(fmt::format(
            "{}: the network's outputs are not finite, so there is no likeliest word; are there "
            "weights in {} that are not? tutti evaluate names the first",
            submission.next_place(), flags_.weights));
      submission.say({labels[row].const_data_ptr<int64_t>(), static_cast<size_t>(flags_.top)});
    }
  }

  // As the network was trained to see them.
  data::Dataset as_trained(const data::Dataset& drawings) const {
    if (spec_.kind == DataKind::strokes) return mapped(drawings, spec_.transforms);
    return drawings
        .map(data::transforms::strokes_to_bitmap(kBitmapSide - 2 * kBitmapBorder,
                                                 {.line = kBitmapLine}))
        .map(data::transforms::center_crop(kBitmapSide))
        .map(data::transforms::to_tensor());
  }

  // Whose bytes a table's error would be about.
  void refuse_photo(const std::string& file) const {
    constexpr int64_t kMagicBytes = 16;
    const auto files = data::local_files();
    if (files->info(file).folder) return;
    const Array front = files->read(file, 0, std::min(kMagicBytes, files->info(file).bytes));
    if (const auto format = data::photo_format(data::text_of(front)); !format.empty())
      throw DataError(fmt::format("{}: is a photo ({}); the model was trained on {}", file, format,
                                  data::name_of(spec_.kind)));
  }

  void predict_rows(const std::string& file) {
    refuse_photo(file);
    const data::CsvReading unlabelled{.labelled = false, .header = flags_.table.has_header()};
    if (spec_.kind == DataKind::csv)
      say(file, model_.predict(data::csv(file, *spec_.table, unlabelled).batch(kTestBatch)));
    else if (spec_.kind == DataKind::idx)
      say(file, model_.predict(data::idx(file, {.labelled = false}).batch(kTestBatch)));
    else if (spec_.kind == DataKind::strokes || is_strokes(file))
      say(file,
          model_.predict(as_trained(data::strokes(file, {.labelled = false})).batch(kTestBatch)));
    else
      say(file, model_.predict(doodles_in(file)));
  }

  // Files of one photo are decoded many at once; of records, a row is a photo.
  void predict_photos() {
    std::vector<std::string> photos;
    const auto predict_so_far = [&] {
      throw_if_stop_requested("predict");
      if (!photos.empty()) predict_photos(std::exchange(photos, {}));
    };
    for (const std::string& file : flags_.files) {
      if (!holds_records(file)) {
        photos.push_back(file);
        if (photos.size() == kPhotosAtOnce) predict_so_far();
        continue;
      }
      predict_so_far();
      attempt([&] { predict_records(file); });
    }
    predict_so_far();
  }

  // What is not there, and what cannot be read, is said of it as of a photo.
  static bool holds_records(const std::string& file) {
    try {
      return data::is_records(data::recognise(file).kind);
    } catch (const Error&) {
      return false;
    }
  }

  void predict_records(const std::string& path) {
    const data::PhotoColumns columns = data::photo_columns(path);
    if (columns.images.size() != 1)
      throw DataError(fmt::format("{}: expected one column of photos; its columns are: {}", path,
                                  columns.to_string()));
    const auto photos = mapped(data::open_records(path, columns.images), spec_.transforms);
    say(path, model_.predict(photos.batch(kTestBatch)));
  }

  void predict_photos(const std::vector<std::string>& files) {
    std::vector<at::Tensor> photos(files.size());
    std::vector<std::string> troubles(files.size());
    on_all_cores(0, std::ssize(files), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      try {
        photos[at] = photo_in(files[at]);
      } catch (const std::exception& error) {
        troubles[at] = error.what();
      }
    });
    std::vector<at::Tensor> sound;
    for (const at::Tensor& photo : photos)
      if (photo.defined()) sound.push_back(photo);
    at::Tensor outputs;
    if (!sound.empty()) outputs = model_.predict(at::stack(sound));
    int64_t row = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      if (!photos[i].defined())
        fail(troubles[i]);
      else
        say_one(files[i], std::nullopt, outputs[row++]);
    }
  }

  at::Tensor photo_in(const std::string& file) const {
    data::Sample sample{{data::local_files()->read(file)}};
    try {
      data::Draw draw(0);  // none of these draws
      for (const auto& transform : transforms_) sample = transform->apply(std::move(sample), draw);
    } catch (const Error& error) {
      throw DataError(fmt::format("{}: {}", file, error.what()));
    }
    return tensor_of(sample.columns.at(0));
  }

  void say(const std::string& file, const at::Tensor& outputs) {
    for (int64_t row = 0; row < outputs.size(0); ++row) say_one(file, row + 1, outputs[row]);
  }

  // `row`: from 1; none of a photo.
  void say_one(const std::string& file, std::optional<int64_t> row, const at::Tensor& output) {
    const std::string place = row ? fmt::format("{}, row {}", file, *row) : file;
    OrderedJson json{{"file", file}};
    if (row) json["row"] = *row;
    if (spec_.predicts_number()) {
      const double value = spec_.target().original(output.item<double>());
      print_line("{}: {} {:.6g}", place, spec_.target().name, value);
      json["target"] = spec_.target().name;
      json["value"] = value;
    } else {
      print_line("{}: {}", place, classes_of(output, json));
    }
    lines_ += json_text(json) + "\n";
  }

  // "ants 0.9731, bees 0.0269"
  std::string classes_of(const at::Tensor& logits, OrderedJson& json) const {
    const auto [values, labels] = at::topk(at::softmax(logits.to(at::kDouble), 0), flags_.top);
    std::vector<std::string> words;
    for (int64_t i = 0; i < flags_.top; ++i) {
      const auto probability = values[i].item<double>();
      const std::string& name = spec_.classes.at(static_cast<size_t>(labels[i].item<int64_t>()));
      words.push_back(fmt::format("{} {:.4f}", name, probability));
      if (i == 0) {
        json["class"] = name;
        json["probability"] = probability;
      }
      if (flags_.top > 1) json["top"].push_back({{"class", name}, {"probability", probability}});
    }
    return fmt::format("{}", fmt::join(words, ", "));
  }

  const PredictFlags& flags_;
  const DataSpec spec_;
  const Network network_;
  Model model_;
  std::vector<data::TransformHandle> transforms_;
  std::string lines_;  // of JSON
  bool failed_ = false;
};

// The first word is a file, too, unless it is a model's name, or looks like one and is no file.
void tell_model_from_files(PredictFlags& flags) {
  const std::vector<std::string> models = all_model_names();
  if (!flags.model.empty() && !is_exported(flags.model) &&
      std::ranges::find(models, flags.model) == models.end()) {
    if (!nearest(flags.model, models).empty() && !is_there(flags.model))
      throw UsageError(unknown_message("model", flags.model, models));
    flags.files.insert(flags.files.begin(), std::exchange(flags.model, ""));
  }
  if (flags.files.empty())
    throw UsageError(
        "FILES: none is given; expected photos, tables, IDX images, doodles or drawings");
}

}  // namespace

void add_predict(Command& program) {
  auto flags = std::make_shared<PredictFlags>();
  Command& command =
      program.command("predict", "Say what a trained model makes of files: class or value");
  Check model_or_file = some_name();
  model_or_file.words = all_model_names();
  command
      .place("MODEL", &flags->model, model_or_file,
             models::model_words() + " (default: what data.json beside the weights says)")
      .required = false;
  command
      .place("FILES", &flags->files, some_name(),
             "Of the kind that was trained on: photos or records of them, tables, IDX images, "
             "doodles (.npy), drawings of strokes or folders of them; one that is called as a "
             "model: ./mlp")
      .required = false;
  command
      .add("--weights", "PATH", &flags->weights, some_name(),
           "The folder that --out of tutti train was given, or a checkpoint in it")
      .required = true;
  command.add("--top", "K", &flags->top, whole_number(1, 1'000'000),
              "So many classes, the likeliest first");
  add_header_flag(command, flags->table.header);
  add_device_flags(command, flags->devices);
  command.add("--threads", "T", &flags->threads, whole_number(1, 1024),
              "Of LibTorch (default: usable cores)");
  command.add("--json", "FILE", &flags->json, some_name(),
              "File for what is said, an object a line");
  command
      .add(
          "--submission", "FILE", &flags->submission, some_name(),
          "Of doodles: FILES are drawings with keys, as Kaggle's test_simplified.csv; what is said "
          "of them goes to FILE as Kaggle takes it, key_id,word, with the words of --top, at most "
          "3")
      .excludes = {"--json"};
  command.footer =
      "Examples:\n"
      "  tutti predict --weights runs/photos photos/new/*.jpg --top 3\n"
      "  tutti predict linear_regression --weights runs/housing new.csv --json prices.json\n"
      "  tutti predict --weights runs/doodle test_simplified.csv --top 3 --submission out.csv\n\n"
      "A file that cannot be read is named, the others are predicted, and the exit code is 1; with "
      "--submission nothing is written then, and it is 2.";
  command.action = [flags] {
    tell_model_from_files(*flags);
    for (const auto& [flag, file] :
         {std::pair{"--json", flags->json}, {"--submission", flags->submission}}) {
      if (file.empty()) continue;
      require_no_input(flag, file, flags->files);
      require_writable(file, flag);
    }
    install_stop_handler();
    return Prediction(*flags).run();
  };
}

}  // namespace tutti::cli
