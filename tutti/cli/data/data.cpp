// tutti data verify, bench: what is damaged, and how fast it is read, before a training does it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/stop.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/commands.h"
#include "tutti/cli/data/reading.h"
#include "tutti/cli/on_all_cores.h"
#include "tutti/cli/results.h"
#include "tutti/data/loader/loader.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/contents.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/idx.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/jsonl.h"
#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/recognise.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/sources/text.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"
#include "tutti/data/transforms/transforms.h"
#include "tutti/train/report/progress.h"

namespace tutti::cli {
namespace {

using data::DataKind;

// ---- verify

// Samples between two looks at the clock, at progress and at signals: some 100 ms of photos.
constexpr int64_t kSamplesAtOnce = 256;

// What reading all of it has found.
struct Verdict {
  std::string count = "nothing";  // what was read
  std::vector<std::string> damages;
  std::vector<std::string> left_out;  // files that are not read, in a line
  std::vector<std::string> notes;     // what was read, and not understood

  bool sound() const { return damages.empty() && left_out.empty(); }
};

// Opens what was recognised; whatever can be damaged in a sample shows when that is read.
data::Dataset opened_whole(const std::string& path, const data::Recognised& found,
                           const data::CsvOptions& table, Verdict& verdict) {
  switch (found.kind) {
    case DataKind::image_folder:
      return data::image_folder(
                 path, {.allow_one_class = true,
                        .on_left_out =
                            [&](const std::string& words) { verdict.left_out.push_back(words); }})
          .map(data::transforms::decode());
    case DataKind::quickdraw: return data::quickdraw(path, {.split = "all"});
    case DataKind::idx:
      return data::idx(path, {.labelled = path.find("images") != std::string::npos});
    case DataKind::csv: return data::csv(path, table);
    case DataKind::jsonl: return data::jsonl(path);
    case DataKind::strokes:
      return data::strokes(path, {.labelled = data::strokes_are_labelled(path)});
    case DataKind::text: return data::text(path, {.length = 1});
    default: throw UsageError(fmt::format("{}: {}", path, found.sentence));
  }
}

// Those that are no file of samples: all is checked when it is opened.
bool read_whole_when_opened(DataKind kind) {
  return kind != DataKind::image_folder && kind != DataKind::jsonl && kind != DataKind::strokes;
}

std::string samples_words(int64_t done, int64_t all, int64_t damaged) {
  return fmt::format("{} of {} samples, {} damaged", with_commas(static_cast<double>(done)),
                     with_commas(static_cast<double>(all)), damaged);
}

// What is wrong with each damaged sample, in their order.
std::vector<std::string> damages_in(const data::Dataset& samples) {
  // Shapes may differ: what is read is let go.
  const auto read =
      samples.map([](const data::Sample&) { return data::Sample{{data::scalar(uint8_t{1})}}; },
                  {.name = "verify", .columns = {{"read", DType::uint8, {}}}});
  const data::Epoch epoch = read.batch(1).epoch({});
  const int64_t all = epoch.num_batches();
  std::map<int64_t, std::string> damages;
  std::mutex mutex;
  for (int64_t begin = 0; begin < all; begin += kSamplesAtOnce) {
    throw_if_stop_requested("data verify");
    const int64_t end = std::min(begin + kSamplesAtOnce, all);
    on_all_cores(begin, end, [&](int64_t i) {
      try {
        epoch.part(i, {0, 1});
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        damages.emplace(i, damage_words(error.what()));
      }
    });
    show_progress(end, all, samples_words(end, all, std::ssize(damages)));
  }
  std::vector<std::string> words;
  for (auto& [place, what] : damages) words.push_back(std::move(what));
  return words;
}

void read_samples(const std::string& path, const data::Recognised& found, const TableFlags& flags,
                  Verdict& verdict) {
  data::CsvOptions table = csv_options(flags);
  table.one_hot = false;
  if (found.kind == DataKind::csv) {
    verdict.damages = data::verify_csv(path, table);
    verdict.count = "all rows";
    if (!verdict.damages.empty()) return;
  }
  const data::Dataset samples = opened_whole(path, found, table, verdict);
  verdict.count = with_commas(static_cast<double>(samples.num_samples())) + " samples";
  if (!read_whole_when_opened(found.kind)) verdict.damages = damages_in(samples);
}

// What the checks of a format find: checksums, lengths, headers, tables.
std::vector<std::string> findings_in(const std::string& path, DataKind kind) {
  data::VerifyOptions options;
  options.progress = [](int64_t done, int64_t all) {
    throw_if_stop_requested("data verify");
    show_progress(done, all, megabytes_of(done, all));
  };
  std::vector<std::string> words;
  for (const data::Finding& finding :
       kind == DataKind::tfrecord     ? data::verify_tfrecord(path, {}, options)
       : kind == DataKind::webdataset ? data::verify_webdataset(path, {}, options)
                                      : data::verify_mds(path, options))
    words.push_back(finding.to_string());
  return words;
}

// Records by their format's checks; where these find nothing, every value is read.
void read_records(const std::string& path, DataKind kind, Verdict& verdict) {
  verdict.damages = findings_in(path, kind);
  if (!verdict.damages.empty()) {
    verdict.count = "records";
    verdict.notes.emplace_back("values in them, photos too, are read once this is mended");
    return;
  }
  const auto progress = [](int64_t done, int64_t all, int64_t damaged) {
    throw_if_stop_requested("data verify");
    show_progress(done, all, samples_words(done, all, damaged));
  };
  data::ContentsReport report = data::read_contents(path, {.progress = progress});
  verdict.count = with_commas(static_cast<double>(report.samples)) + " samples";
  verdict.damages = std::move(report.damaged);
  verdict.notes = std::move(report.notes);
}

// Each in its line; what to try, behind it, once for those that follow each other.
void print_damages(const std::vector<std::string>& damages) {
  std::string said;
  for (const std::string& damage : damages) {
    const size_t end = std::min(damage.find('\n'), damage.size());
    const std::string advice = damage.substr(end);
    print_line("damaged: {}", advice == said ? damage.substr(0, end) : damage);
    said = advice;
  }
}

int verify(const std::string& path, const TableFlags& flags) {
  const data::Recognised found = recognise(path, flags);
  if (found.kind == DataKind::unknown)
    throw UsageError(fmt::format("{}: {}", path, found.sentence));
  require_table(path, flags, found);
  install_stop_handler();
  print_line("{}: {}", path, found.sentence);
  Verdict verdict;
  try {
    if (data::is_records(found.kind))
      read_records(path, found.kind, verdict);
    else
      read_samples(path, found, flags, verdict);
  } catch (const DataError& error) {
    verdict.damages.emplace_back(error.what());
  }
  for (const std::string& note : verdict.notes) print_line("{}", note);
  for (const std::string& words : verdict.left_out) print_line("{}", words);
  print_damages(verdict.damages);
  if (!verdict.damages.empty())
    print_line("{} read, {} damaged", verdict.count, verdict.damages.size());
  else
    print_line("{} read, all sound{}", verdict.count,
               verdict.left_out.empty() ? "" : ", but not all files");
  return verdict.sound() ? 0 : 1;
}

// ---- bench

struct BenchFlags {
  std::string path;
  DataFlags data;
  LoaderFlags loader;
  int64_t batch = 128;
  int64_t epochs = 2;
  uint64_t seed = 0;
  std::string json;
};

struct BenchFigures {
  int64_t samples = 0;
  int64_t bytes = 0;
  double seconds = 0;
  data::LoaderReport report;
};

BenchFigures load_all(const data::Dataset& samples, const BenchFlags& flags) {
  const auto batches = samples.shuffle().batch(flags.batch);
  // Nobody computes beside it: all cores are the loader's.
  data::Loader loader(loader_options(flags.loader), {.busy_cores = 0});
  BenchFigures figures;
  const auto begin = Clock::now();
  for (int64_t number = 0; number < flags.epochs; ++number) {
    const data::Epoch epoch = batches.epoch({.epoch = number, .seed = flags.seed});
    const auto whole = [epoch](int64_t step, int) {
      return data::BatchPart{step, {0, epoch.batch_size(step)}};
    };
    loader.begin(epoch, {.end_step = epoch.num_batches(), .part = whole});
    for (int64_t step = 0; step < epoch.num_batches(); ++step) {
      throw_if_stop_requested("data bench");
      const data::Batch batch = loader.take(step, 0, Deadline(kDefaultTimeLimit));
      figures.samples += batch.size;
      for (const Array& column : batch.columns) figures.bytes += column.num_bytes();
    }
    loader.end();
  }
  figures.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  figures.report = loader.report();
  return figures;
}

OrderedJson json_of(const BenchFlags& flags, const DataSpec& spec, const BenchFigures& figures) {
  OrderedJson json{{"bench", "data"},
                   {"data", data::name_of(spec.kind)},
                   {"batch", flags.batch},
                   {"epochs", flags.epochs},
                   {"samples", figures.samples},
                   {"seconds", figures.seconds},
                   {"samples_per_second", static_cast<double>(figures.samples) / figures.seconds},
                   {"mb_per_second", static_cast<double>(figures.bytes) / 1e6 / figures.seconds},
                   {"workers", figures.report.workers},
                   {"peak_bytes", figures.report.peak_bytes},
                   {"replaced", figures.report.replaced.size()},
                   {"stages", OrderedJson::array()}};
  for (const data::StageReport& stage : figures.report.stages)
    json["stages"].push_back(
        {{"name", stage.name}, {"samples", stage.samples}, {"seconds", stage.seconds}});
  return json;
}

int bench(const BenchFlags& flags) {
  loader_options(flags.loader);  // what it refuses is refused here
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const TrainData data = open_to_read(flags.path, flags.data);
  if (flags.batch > data.train.num_samples())
    throw UsageError(fmt::format("--batch-size {}: there are {} samples in {}", flags.batch,
                                 data.train.num_samples(), flags.path));
  install_stop_handler();
  for (const std::string& sentence : data.sentences) print_line("{}", sentence);
  std::fflush(stdout);
  const BenchFigures figures = load_all(data.train, flags);
  const auto json = json_of(flags, data.spec, figures);
  fmt::print("{} samples/s, {} MB/s of batches; {} worker{}, {:.1f} s\n",
             with_commas(json["samples_per_second"]), with_commas(json["mb_per_second"]),
             figures.report.workers, figures.report.workers == 1 ? "" : "s", figures.seconds);
  fmt::print("{}", figures.report.table());
  const auto& [stages, replaced] = std::tie(figures.report.stages, figures.report.replaced);
  if (!stages.empty()) fmt::print("{} takes longest\n", stages.front().name);
  for (const std::string& sample : replaced) print_line("replaced: {}", sample);
  fmt::print("{}\n", json_text(json));
  if (!flags.json.empty()) write_file_atomically(flags.json, json_text(json) + "\n");
  return 0;
}

// ---- the commands

void add_verify(Command& data) {
  auto path = std::make_shared<std::string>();
  auto flags = std::make_shared<TableFlags>();
  Command& command =
      data.command("verify", "Read all of it on all cores, and name what is damaged");
  command.place("PATH", path.get(), some_name(),
                "Photos, doodles, drawings, IDX, a table, JSON lines, text or records");
  add_table_flags(command, *flags);
  command.footer =
      "Examples:\n"
      "  tutti data verify photos/train\n"
      "  tutti data verify shards\n\n"
      "Of records checksums and lengths are checked, then every value is read: photos, arrays, "
      "JSON.\nA line a damaged sample, with its file and byte or line, and one of files that are "
      "left out;\nexit code 1 when there is one.";
  command.action = [path, flags] { return verify(*path, *flags); };
}

void add_bench_of_data(Command& data) {
  auto flags = std::make_shared<BenchFlags>();
  Command& command = data.command(
      "bench", "Load it as a training would, without one: samples a second, time by stage");
  command.place("PATH", &flags->path, some_name(),
                "Photos in folders or records, doodles, drawings, IDX or a table");
  add_pipeline_flags(command, flags->data);
  command.add("--batch-size", "B", &flags->batch, whole_number(1, int64_t{1} << 31),
              "Samples of a batch");
  command.add("--epochs", "E", &flags->epochs, whole_number(1, 1'000'000), "Passes over the data");
  command
      .add("--seed", "S", &flags->seed, whole_number(0, int64_t{1} << 62),
           "Of order and augmentation")
      .preset = "0";
  command.add("--json", "FILE", &flags->json, some_name(), "File for the figures");
  add_loader_flags(command, flags->loader);
  command.footer =
      "Examples:\n"
      "  tutti data bench photos/train --image-size 224 --augment --workers 4\n"
      "  tutti data bench shards --target cls --workers 4";
  command.action = [flags] { return bench(*flags); };
}

}  // namespace

void add_data(Command& program) {
  Command& command =
      program.command("data", "Look after data: what is damaged, how fast it is, other formats");
  add_verify(command);
  add_bench_of_data(command);
  add_index_of_data(command);
  add_convert_of_data(command);
}

}  // namespace tutti::cli
