// What the input pipeline costs, a case at a time; `--help` lists them.
//
//   bench_input_speed photos --data ../shared/data/hymenoptera/train
//   bench_input_speed slow
//
// Each case prints a line of JSON. Where there are two ways, they are measured in turn, ROUNDS
// times after one that warms up: medians of each, and the median of their ratio, with its least and
// most. bench/input_pipelines.py runs all cases, and the peers' pipelines in turn with them.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/resident.h"
#include "tutti/data/loader/loader.h"
#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/strokes.h"
#include "tutti/data/transforms/strokes.h"
#include "tutti/data/transforms/transforms.h"

#include "bench/bare_photos.h"
#include "bench/rounds.h"

namespace {

using namespace tutti;
using Json = nlohmann::ordered_json;

struct Setting {
  std::string folder;
  int64_t samples = 2000;
  int64_t batch = 64;
  int64_t rounds = 7;
  int64_t budget_mib = 256;
  int workers = data::kAuto;
};

struct Cost {
  double per_second = 0;
  double core_us = 0;  // of all threads, a sample
};

Cost cost_of(int64_t samples, const std::function<void()>& work) {
  const TimePoint begin = Clock::now();
  const std::clock_t used = std::clock();
  work();
  const auto count = static_cast<double>(samples);
  return {.per_second = count / std::chrono::duration<double>(Clock::now() - begin).count(),
          .core_us = 1e6 * static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC / count};
}

// Computes, as a step does, for so long.
void compute(Millis time) {
  const Deadline end(time);
  while (!end.passed()) {
  }
}

// Takes each batch of an epoch, and does `step`.
void load(
    data::Loader& loader, const data::Dataset& samples, int64_t number,
    const std::function<void(int64_t)>& step = [](int64_t) {}) {
  const data::Epoch epoch = samples.epoch({.epoch = number});
  const auto whole = [epoch](int64_t at, int) {
    return data::BatchPart{at, {0, epoch.batch_size(at)}};
  };
  loader.begin(epoch, {.end_step = epoch.num_batches(), .part = whole});
  for (int64_t at = 0; at < epoch.num_batches(); ++at) {
    loader.take(at, 0, Deadline(kDefaultTimeLimit));
    step(at);
  }
  loader.end();
}

// ---- photos: beside threads that do nothing else

data::Dataset photos(const Setting& setting) {
  const auto folder = data::image_folder(setting.folder, {.allow_one_class = true});
  const auto times = (setting.samples + folder.num_samples() - 1) / folder.num_samples();
  const auto mean = std::vector<double>(std::begin(bench::kPhotoMean), std::end(bench::kPhotoMean));
  const auto std = std::vector<double>(std::begin(bench::kPhotoStd), std::end(bench::kPhotoStd));
  return folder.shuffle()
      .repeat(times)
      .take(setting.samples)
      .map(data::transforms::decode_crop(bench::kPhotoSide))
      .map(data::transforms::random_horizontal_flip())
      .map(data::transforms::normalize(mean, std))
      .batch(setting.batch);
}

std::vector<std::string> jpegs_in(const std::string& folder) {
  std::vector<std::string> jpegs;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".jpg") jpegs.push_back(read_file(entry.path()));
  if (jpegs.empty())
    throw UsageError(fmt::format("--data {}: got no .jpg, expected a folder of them", folder));
  return jpegs;
}

Json measure_photos(const Setting& setting) {
  const data::Dataset samples = photos(setting);
  const std::vector<std::string> jpegs = jpegs_in(setting.folder);
  data::Loader loader({.workers = setting.workers}, {.busy_cores = 0});
  int64_t epoch = 0;
  std::vector<double> core_us, core_ratios;  // which a machine's neighbours hardly touch
  double bare_core_us = 0;
  const auto bare = [&] {
    const int cores = host_facts().usable_cores;
    const Cost cost =
        cost_of(setting.samples, [&] { bench::make_bare_photos(jpegs, setting.samples, cores); });
    bare_core_us = cost.core_us;
    return cost.per_second;
  };
  const auto ours = [&] {
    const Cost cost = cost_of(setting.samples, [&] { load(loader, samples, epoch++); });
    core_us.push_back(cost.core_us);
    core_ratios.push_back(bare_core_us / cost.core_us);
    return cost.per_second;
  };
  bare();
  ours();
  const bench::InTurn figures = bench::in_turn(setting.rounds, bare, ours);
  return {{"bench", "input_photos"},
          {"files", jpegs.size()},
          {"batch", setting.batch},
          {"rounds", setting.rounds},
          {"workers", loader.report().workers},
          {"bare_per_second", figures.one},
          {"per_second", figures.other},
          {"ratio", figures.ratio},
          {"least", figures.least},
          {"most", figures.most},
          {"core_us", bench::median(core_us)},
          {"core_ratio", bench::median(core_ratios)}};
}

// ---- doodles: out of memory

Json measure_doodles(const Setting& setting) {
  constexpr int64_t kEpochs = 10;  // of a round
  const auto samples = data::quickdraw(setting.folder).shuffle().batch(setting.batch);
  data::Loader loader({.workers = setting.workers}, {.busy_cores = 0});
  std::vector<double> rates, core_us;
  for (int64_t round = 0; round <= setting.rounds; ++round) {
    const Cost cost = cost_of(kEpochs * samples.num_samples(), [&] {
      for (int64_t i = 0; i < kEpochs; ++i) load(loader, samples, round * kEpochs + i);
    });
    if (round == 0) continue;
    rates.push_back(cost.per_second);
    core_us.push_back(cost.core_us);
  }
  return {{"bench", "input_doodles"},
          {"batch", setting.batch},
          {"rounds", setting.rounds},
          {"per_second", bench::median(rates)},
          {"core_us", bench::median(core_us)}};
}

// ---- slow: a disk that takes 20 ms a read

class SlowDisk final : public data::SampleSource {
 public:
  explicit SlowDisk(int64_t rows) : rows_(rows) {}
  int64_t num_rows() const override { return rows_; }
  const std::vector<data::Column>& columns() const override { return columns_; }
  data::Sample read_row(int64_t row) const override {
    std::this_thread::sleep_for(Millis{20});
    return {{data::scalar(row)}};
  }

 private:
  int64_t rows_;
  std::vector<data::Column> columns_{{"x", DType::int64, {}}};
};

Json measure_slow(const Setting& setting) {
  constexpr int64_t kSteps = 200;  // until it is looked at, and then
  constexpr Millis kStep{20};
  const auto samples =
      data::Dataset(std::make_shared<SlowDisk>(2 * kSteps * setting.batch)).batch(setting.batch);
  data::Loader loader({.workers = setting.workers}, {.busy_cores = 1});
  data::LoaderReport before;
  load(loader, samples, 0, [&](int64_t step) {
    if (step + 1 == kSteps) before = loader.report();
    compute(kStep);
  });
  const data::LoaderReport after = loader.report();
  const double waited = after.waiting_seconds - before.waiting_seconds;
  return {{"bench", "input_slow"},
          {"batch", setting.batch},
          {"step_ms", kStep.count()},
          {"wait_share_before", before.wait_share()},
          {"wait_share", waited / (after.seconds - before.seconds)},
          {"workers", after.workers}};
}

// ---- memory: what the loader keeps, of photos, beside its budget

Json measure_memory(const Setting& setting) {
  constexpr double kMiB = 1 << 20;
  const data::Dataset samples = photos(setting);
  const int64_t before = resident_bytes();
  forget_peak_resident();
  data::Loader loader({.workers = 2, .memory = setting.budget_mib << 20}, {.busy_cores = 0});
  // Steps as slow as a batch's making, so that the budget fills.
  load(loader, samples, 0, [](int64_t) { std::this_thread::sleep_for(Millis{100}); });
  const int64_t resident = peak_resident_bytes() - before;
  return {{"bench", "input_memory"},
          {"budget_mib", setting.budget_mib},
          {"batches_mib", static_cast<double>(loader.report().peak_bytes) / kMiB},
          {"resident_mib", static_cast<double>(resident) / kMiB},
          {"beyond_budget_mib", static_cast<double>(resident) / kMiB - setting.budget_mib}};
}

// ---- sleep: what the report says of a stage of 3 ms

Json measure_sleep(const Setting& setting) {
  static constexpr Millis kSleep{3};
  constexpr int64_t kSamples = 640;
  std::atomic<int64_t> nanoseconds{0};  // how long they were: a sleep may end late
  const auto sleep = [&](data::Sample sample) {
    const TimePoint begin = Clock::now();
    std::this_thread::sleep_for(kSleep);
    nanoseconds += std::chrono::nanoseconds(Clock::now() - begin).count();
    return sample;
  };
  const auto samples = data::from_arrays({data::array_of(std::vector<float>(kSamples), {kSamples})})
                           .map(sleep, {.name = "sleep", .columns = {{"x", DType::float32, {}}}})
                           .batch(setting.batch);
  data::Loader loader({.workers = setting.workers}, {.busy_cores = 1});
  load(loader, samples, 0);
  const auto report = loader.report();
  const auto stage = std::ranges::find(report.stages, "sleep", &data::StageReport::name);
  const double reported = 1e3 * stage->seconds / static_cast<double>(stage->samples);
  const double slept = 1e-6 * static_cast<double>(nanoseconds) / kSamples;
  return {{"bench", "input_sleep"},
          {"asked_ms", kSleep.count()},
          {"slept_ms", slept},
          {"reported_ms", reported},
          {"off", reported / slept - 1}};
}

// ---- strokes: from lines of JSON to batches of bitmaps, by one core

// One channel of ink, or three with time. bench/stroke_bitmaps.py runs this beside Python's.
Json measure_strokes(const Setting& setting) {
  const auto drawings = data::strokes(setting.folder);
  const auto times = (setting.samples + drawings.num_samples() - 1) / drawings.num_samples();
  data::Loader loader({.workers = 0}, {});
  int64_t epoch = 0;
  Json json{{"bench", "input_strokes"},
            {"drawings", drawings.num_samples()},
            {"batch", setting.batch},
            {"rounds", setting.rounds}};
  for (const bool time : {false, true}) {
    const auto samples = drawings.shuffle()
                             .repeat(times)
                             .take(setting.samples)
                             .map(data::transforms::strokes_to_bitmap(64, {.time = time}))
                             .map(data::transforms::to_tensor())
                             .batch(setting.batch);
    std::vector<double> core_us;
    for (int64_t round = 0; round <= setting.rounds; ++round)
      core_us.push_back(cost_of(setting.samples, [&] { load(loader, samples, epoch++); }).core_us);
    core_us.erase(core_us.begin());  // which warmed up
    json[time ? "core_us_with_time" : "core_us"] = bench::median(core_us);
  }
  return json;
}

// ---- the command line

struct Case {
  const char* name;
  const char* words;
  bool data;
  int64_t batch;
  Json (*measure)(const Setting&);
};

constexpr Case kCases[] = {
    {"photos", "Photos decoded, cropped, flipped and normalised, beside bare libjpeg-turbo threads",
     true, 64, measure_photos},
    {"doodles", "Doodles out of memory", true, 128, measure_doodles},
    {"strokes", "Drawings of strokes to bitmaps of 64 x 64: time of a core", true, 128,
     measure_strokes},
    {"slow", "Reads of 20 ms each: share of step time waiting, after 200 steps", false, 32,
     measure_slow},
    {"memory", "Resident memory of a loader of photos, beside its budget", true, 64,
     measure_memory},
    {"sleep", "What the report says of a stage that sleeps 3 ms a sample", false, 32,
     measure_sleep},
};

void add_case(CLI::App& app, const Case& one) {
  auto setting = std::make_shared<Setting>();
  setting->batch = one.batch;
  CLI::App* command = app.add_subcommand(one.name, one.words);
  if (one.data)
    command->add_option("--data", setting->folder, "Folder of photos, doodles or drawings")
        ->required();
  const auto number = [&](const char* flag, int64_t& value, const char* words) {
    command->add_option(flag, value, words)
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
        ->capture_default_str();
  };
  number("--samples", setting->samples, "Photos of a round; a folder of fewer comes again");
  number("--batch", setting->batch, "Samples of a batch");
  number("--rounds", setting->rounds, "Rounds, after one that warms up");
  number("--budget", setting->budget_mib, "MiB that the loader of `memory` may use");
  command->add_option("--workers", setting->workers, "Of the loader; -1: it chooses")
      ->check(CLI::Range(-1, 256))
      ->capture_default_str();
  command->callback([setting, &one] { fmt::print("{}\n", one.measure(*setting).dump()); });
}

int run(int argc, char** argv) {
  CLI::App app("What the input pipeline costs, a case at a time; each prints a line of JSON");
  app.require_subcommand(1);
  app.footer(
      "Example:\n  bench_input_speed photos --data ../shared/data/hymenoptera/train --rounds 5");
  for (const Case& one : kCases) add_case(app, one);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
