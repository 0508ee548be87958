// Steps that a PJRT plugin compiles, measured as the peers of tutti_bench compare are: commands and
// answers are those of bench/peer/talk.py. bench/compiled_steps.py runs it beside JAX.
//
//   bench_compiled_step --data DIR [--plugin cpu] [--devices 2]
//
// The batch is that of all devices. Doodles are in the host's memory before the clock starts, and
// go to the devices step by step; the model begins with small random weights.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/random.h"
#include "tutti/data/quickdraw.h"
#include "tutti/models/models.h"
#include "tutti/train/lowered/compiled_trainer.h"

namespace {

using namespace tutti;

constexpr int64_t kPreloaded = 32;  // batches, taken in turn
constexpr size_t kInFlight = 4;     // steps that the host is ahead, at most
const Millis kLimit{120'000};

struct Settings {
  std::string data, plugin = "cpu";
  int devices = 2;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Uniform, as wide as a layer of that many inputs wants it.
std::map<std::string, Array> first_weights(const CompiledTrainer& trainer) {
  std::map<std::string, Array> values;
  RandomStream random(random_key(1, RandomPurpose::init));
  for (const auto& [name, array] : trainer.values()) {
    if (!name.ends_with("weight")) continue;
    const auto inputs = static_cast<double>(array.num_elements() / array.shape()[0]);
    for (float& value : array.as<float>())
      value = static_cast<float>((2 * random.uniform() - 1) / std::sqrt(inputs));
    values.emplace(name, array);
  }
  return values;
}

class Training {
 public:
  Training(const Settings& settings, const std::string& model, int64_t batch)
      : trainer_(
            models::model_by_name(model), losses::sparse_categorical_crossentropy(), optim::adam(),
            pjrt::Client::open(pjrt::find_plugin(settings.plugin),
                               {.options = pjrt::options_for(settings.plugin, settings.devices)}),
            {.replicas = settings.devices}) {
    trainer_.load(first_weights(trainer_));
    const data::Epoch epoch =
        data::quickdraw(settings.data).shuffle().batch(batch, /*drop_remainder=*/true).epoch({});
    for (int64_t step = 0; step < std::min(kPreloaded, epoch.num_batches()); ++step) {
      std::vector<CompiledPart>& parts = batches_.emplace_back();
      for (int r = 0; r < settings.devices; ++r) {
        const data::Batch part = epoch.part(step, data::share(batch, settings.devices, r));
        parts.push_back({{part.columns[0]}, part.columns[1]});
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    train(1);
    first_seconds_ = seconds_since(begin);
  }

  void train(int64_t steps) {
    std::deque<CompiledResult> in_flight;
    for (int64_t i = 0; i < steps; ++i) {
      in_flight.push_back(trainer_.step(batches_[static_cast<size_t>(i) % batches_.size()], 1e-3));
      if (in_flight.size() < kInFlight) continue;
      loss_ = in_flight.front().loss(Deadline(kLimit));
      in_flight.pop_front();
    }
    for (const CompiledResult& result : in_flight) loss_ = result.loss(Deadline(kLimit));
  }

  double loss() const { return loss_; }
  double first_seconds() const { return first_seconds_; }

 private:
  CompiledTrainer trainer_;
  std::vector<std::vector<CompiledPart>> batches_;
  double loss_ = 0, first_seconds_ = 0;
};

void answer_commands(const Settings& settings) {
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<Training>> trainings;
  fmt::print("{}\n", nlohmann::json{{"plugin", settings.plugin}}.dump());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto command = nlohmann::json::parse(line);
    const auto batch = command.at("batch").get<int64_t>();
    const auto steps = command.at("steps").get<int64_t>();
    const std::string model = command.at("model").get<std::string>();
    auto& training = trainings[{model, batch}];
    if (!training) training = std::make_unique<Training>(settings, model, batch);
    training->train(command.at("warmup").get<int64_t>());
    const auto begin = std::chrono::steady_clock::now();
    training->train(steps);
    const double seconds = seconds_since(begin);
    fmt::print("{}\n", nlohmann::json{{"images_per_second", double(batch * steps) / seconds},
                                      {"step_ms", 1000 * seconds / double(steps)},
                                      {"loss", training->loss()},
                                      {"first_step_seconds", training->first_seconds()}}
                           .dump());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures steps that a PJRT plugin compiles");
  app.add_option("--data", settings.data, "Folder of doodles")->required();
  app.add_option("--plugin", settings.plugin, "cpu, tpu, cuda or a path");
  app.add_option("--devices", settings.devices, "Of the plugin");
  CLI11_PARSE(app, argc, argv);
  answer_commands(settings);
  return 0;
}
