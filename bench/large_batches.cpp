// Large batches on Quick, Draw!: steps to an accuracy and the accuracy at the end, by batch, with
// and without the recipe (LargeBatch), and the batch beyond which the gradient noise scale says
// that more samples a step stop paying.
//
//   bench_large_batches DATA [--model small_resnet] [--epochs 8] [--batches 64,256,1024,4096]
//                       [--modes plain,recipe,root,lars,lamb] [--rate 0.05] [--lars-rate 2]
//                       [--lamb-rate 0.01] [--goal 0.8] [--out FILE]
//
// DATA is a folder of drawings. Every training sees as many samples: EPOCHS times the training
// data, two replicas of one thread. A rate is that of the smallest batch, and falls along half a
// cosine. The modes:
//   plain   sgd with momentum 0.9, the same rate for every batch
//   recipe  the same with .large_batch: linear scaling, two epochs of warm-up
//   root    the same, scaled by the square root: for the smallest batch the same training
//   lars    the recipe with lars, scaled by the square root
//   lamb    the recipe with lamb, scaled by the square root
// 2,000 of the test data are looked at after every 4,096 samples, and after every step of larger
// batches; all of them at the end. Prints a line of JSON a training; FILE gets a table in Markdown.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
#include "tutti/train/model/model.h"

namespace {

using namespace tutti;

constexpr int64_t kSamplesBetweenTests = 4096;
constexpr int64_t kTestedPerClass = 200;
constexpr int64_t kWarmUpEpochs = 2;

struct Asked {
  std::string folder, model = "small_resnet", out;
  std::vector<int64_t> batches = {64, 256, 1024, 4096};
  std::vector<std::string> modes = {"plain", "recipe", "root", "lars", "lamb"};
  int64_t epochs = 8;
  double rate = 0.05, lars_rate = 2, lamb_rate = 0.01;
  double goal = 0.8;
};

struct Result {
  std::string mode;
  int64_t batch = 0;
  int64_t steps = 0;
  int64_t steps_to_goal = 0;  // 0: not reached
  double accuracy = 0;        // at the end
  double noise_at_goal = std::nan("");
  double noise_at_end = std::nan("");
  double seconds = 0;
};

// A small one with batch norms and residual blocks, for which the recipe was made, or one of the
// zoo.
nn::Graph network(const std::string& name) {
  if (name == "small_resnet")
    return models::resnet18({.classes = 10, .input = {1, 28, 28}, .width = 0.125});
  return models::model_by_name(name, {.classes = 10});
}

optim::Rule rule_of(const std::string& mode) {
  if (mode == "lars") return optim::lars({.momentum = 0.9, .weight_decay = 1e-4});
  if (mode == "lamb") return optim::lamb({.weight_decay = 1e-4});
  return optim::sgd({.momentum = 0.9, .weight_decay = 1e-4});
}

double rate_of(const Asked& asked, const std::string& mode) {
  if (mode == "lars") return asked.lars_rate;
  return mode == "lamb" ? asked.lamb_rate : asked.rate;
}

Result train(const Asked& asked, const std::string& mode, int64_t batch) {
  const Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .seed = 1});
  const auto data = data::quickdraw(asked.folder, {.split = "train"}).shuffle().batch(batch);
  const auto test = data::quickdraw(asked.folder, {.split = "test"}).batch(256);
  const auto some =
      data::quickdraw(asked.folder, {.split = "test", .limit_per_class = kTestedPerClass})
          .batch(256);
  const int64_t steps = asked.epochs * data.num_samples() / batch;
  const int64_t between =
      std::min(data.num_batches(), std::max<int64_t>(1, kSamplesBetweenTests / batch));
  CompileOptions options{
      .optimizer = rule_of(mode),
      .loss = losses::sparse_categorical_crossentropy(),
      .metrics = {metrics::accuracy()},
      .learning_rate = schedules::cosine({.initial = rate_of(asked, mode), .decay_steps = steps}),
      .measures = {.noise_scale = true}};
  if (mode != "plain")
    options.large_batch =
        LargeBatch{.base = asked.batches.front(),
                   .scaling = mode == "recipe" ? BatchScaling::linear : BatchScaling::square_root,
                   .warm_up = {.steps = kWarmUpEpochs * data.num_batches()}};
  Model model(strategy, [&] { return network(asked.model); });
  model.compile(options);
  const History history = model.fit(data, {.epochs = (steps + between - 1) / between,
                                           .validation = some,
                                           .max_steps = steps,
                                           .verbose = 0,
                                           .on_nan = OnNan::end,
                                           .steps_per_epoch = between});
  Result result{.mode = mode, .batch = batch, .steps = steps, .seconds = history.train_seconds};
  if (history.rows.empty()) return result;
  const auto accuracies = history.column("val_accuracy");
  const auto noises = history.column("noise_scale");
  result.accuracy = model.evaluate(test).at("accuracy");
  result.noise_at_end = noises.back();
  for (size_t i = 0; i < accuracies.size() && result.steps_to_goal == 0; ++i)
    if (accuracies[i] >= asked.goal) {
      result.steps_to_goal = std::min(steps, (static_cast<int64_t>(i) + 1) * between);
      result.noise_at_goal = noises[i];
    }
  return result;
}

nlohmann::ordered_json json_of(const Asked& asked, const Result& result) {
  return {{"bench", "large_batches"},
          {"model", asked.model},
          {"mode", result.mode},
          {"global_batch", result.batch},
          {"steps", result.steps},
          {"goal", asked.goal},
          {"steps_to_goal", result.steps_to_goal},
          {"accuracy", result.accuracy},
          {"noise_scale_at_goal", result.noise_at_goal},
          {"noise_scale_at_end", result.noise_at_end},
          {"train_seconds", result.seconds}};
}

std::string cell(double number) {
  return std::isfinite(number) ? fmt::format("{:.0f}", number) : "unknown";
}

// McCandlish et al. 2018, equation 2.11: steps = least steps * (1 + noise scale / batch).
double predicted_steps(const Result& base, int64_t batch) {
  const auto relative = [&](int64_t size) {
    return 1 + base.noise_at_goal / static_cast<double>(size);
  };
  return static_cast<double>(base.steps_to_goal) * relative(batch) / relative(base.batch);
}

// Its mode has the figures of which all else is told: steps that are predicted, useful batches.
const Result& told(const Asked& asked, const std::vector<Result>& results, int64_t batch) {
  const auto of = [&](const std::string& mode) {
    return std::ranges::find_if(
        results, [&](const Result& r) { return r.mode == mode && r.batch == batch; });
  };
  const auto recipe = of("recipe");
  return recipe == results.end() ? *of(asked.modes.front()) : *recipe;
}

std::string table_of(const Asked& asked, const std::vector<Result>& results) {
  std::string head = "| batch | steps in all |", line = "|---:|---:|";
  for (const std::string& mode : asked.modes) {
    head += fmt::format(" {}: steps to {:.0f} % | at the end |", mode, 100 * asked.goal);
    line += "---:|---:|";
  }
  std::string text = fmt::format(
      "{} predicted steps | useful batch at {:.0f} % | at the end |\n{}---:|---:|---:|\n", head,
      100 * asked.goal, line);
  const Result& base = told(asked, results, asked.batches.front());
  for (const int64_t batch : asked.batches) {
    const Result& one = told(asked, results, batch);
    text += fmt::format("| {} | {} |", batch, one.steps);
    for (const Result& r : results)
      if (r.batch == batch)
        text += fmt::format(" {} | {:.1f} % |",
                            r.steps_to_goal > 0 ? std::to_string(r.steps_to_goal) : "never",
                            100 * r.accuracy);
    text += fmt::format(" {} | {} | {} |\n", cell(predicted_steps(base, batch)),
                        cell(one.noise_at_goal), cell(one.noise_at_end));
  }
  return text;
}

void run(const Asked& asked) {
  std::vector<Result> results;
  for (const int64_t batch : asked.batches)
    for (const std::string& mode : asked.modes) {
      results.push_back(train(asked, mode, batch));
      fmt::print("{}\n", json_of(asked, results.back()).dump());
      std::fflush(stdout);
    }
  const std::string table = table_of(asked, results);
  fmt::print("\n{}", table);
  if (!asked.out.empty())
    write_file_atomically(
        asked.out,
        fmt::format("# Large batches on Quick, Draw!\n\n"
                    "`{}`, {} epochs, two replicas of one thread; {}. The modes and how often is "
                    "tested: `bench/large_batches.cpp`.\n\n"
                    "    bench_large_batches {} --model {} --epochs {} --batches {} --modes {} "
                    "--rate {} --lars-rate {} --lamb-rate {} --goal {}\n\n{}",
                    asked.model, asked.epochs, host_facts().cpu_model, asked.folder, asked.model,
                    asked.epochs, fmt::join(asked.batches, ","), fmt::join(asked.modes, ","),
                    asked.rate, asked.lars_rate, asked.lamb_rate, asked.goal, table));
}

}  // namespace

int main(int argc, char** argv) {
  Asked asked;
  CLI::App app("Large batches on Quick, Draw!");
  app.add_option("DATA", asked.folder)->required();
  app.add_option("--model", asked.model)->capture_default_str();
  app.add_option("--epochs", asked.epochs)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--batches", asked.batches, "Ascending")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--modes", asked.modes)
      ->delimiter(',')
      ->check(CLI::IsMember({"plain", "recipe", "root", "lars", "lamb"}))
      ->capture_default_str();
  app.add_option("--rate", asked.rate)->check(CLI::Range(1e-9, 10.0))->capture_default_str();
  app.add_option("--lars-rate", asked.lars_rate)
      ->check(CLI::Range(1e-9, 1e4))
      ->capture_default_str();
  app.add_option("--lamb-rate", asked.lamb_rate)
      ->check(CLI::Range(1e-9, 10.0))
      ->capture_default_str();
  app.add_option("--goal", asked.goal)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--out", asked.out);
  CLI11_PARSE(app, argc, argv);
  try {
    run(asked);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
