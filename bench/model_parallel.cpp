// What model parallel costs: forward and backward of a step, without an update.
//
//   bench_model_parallel pipeline-mlp --schedule 1f1b --strategy mirrored --replicas 2
//   bench_model_parallel pipeline-gpt --schedule gpipe --strategy mirrored --replicas 2
//   bench_model_parallel tensor --strategy mirrored --replicas 2
//   bench_model_parallel blocks
//
// pipeline-mlp  a row of dense layers of --width units with ReLU, --layers a stage, --rows a
// microbatch pipeline-gpt  GPT of --layers blocks a stage, --width features, context 64, 65 words,
// a head of its
//               own, --rows windows a microbatch; cross-entropy
// tensor        --layers MLPs one behind the other, --width features and 4 times as many hidden
// units,
//               each cut into as many blocks as there are ranks; --rows rows
// blocks        the same on one device in --blocks blocks, in turn with it in one: their ratio
//
// Dense layers are nn::dense; --torch-linear gives those of pipeline-mlp PyTorch's products.
// Prints the median of --rounds rounds of --steps steps, a line of JSON. With --serve it prints
// "{}", then answers each number of steps on stdin with {"step_ms": ...}: bench/model_parallel.py
// runs it so, in turn with bench/peer/model_parallel.py.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/models/gpt.h"
#include "tutti/nn/dense.h"
#include "tutti/parallel/graph_stage.h"
#include "tutti/parallel/mlp.h"
#include "tutti/parallel/pipeline.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/strategy/strategy.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Setting {
  std::string mode;
  std::string schedule = "1f1b";
  int microbatches = 8;
  int64_t width = 512, layers = 4, rows = 32;
  int blocks = 2;
  int64_t steps = 10, rounds = 7;
  bool torch_linear = false;
  bool serve = false;
};
constexpr int64_t kContext = 64, kWords = 65;

// A step of one rank.
using Step = std::function<void()>;

class DenseStage : public torch::nn::Module {
 public:
  DenseStage(int64_t width, int64_t layers, bool torch_linear) : torch_linear_(torch_linear) {
    for (int64_t i = 0; i < layers; ++i)
      layers_.push_back(
          register_module(std::to_string(i), std::make_shared<nn::LinearImpl>(width, width)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : layers_)
      x = torch_linear_ ? torch::linear(x, layer->weight, layer->bias).relu()
                        : nn::dense(x, layer->weight, layer->bias, nn::Activation::relu);
    return x;
  }

 private:
  bool torch_linear_;
  std::vector<std::shared_ptr<nn::LinearImpl>> layers_;
};

parallel::Stage mlp_stage(const Setting& setting, int stage, int stages) {
  const auto module =
      std::make_shared<DenseStage>(setting.width, setting.layers, setting.torch_linear);
  const std::vector<parallel::Border> border{{.shape = {setting.width}}};
  parallel::Stage made{.module = module, .forward = [module](at::TensorList x) {
                         return std::vector{module->forward(x[0])};
                       }};
  if (stage > 0) made.inputs = border;
  if (stage + 1 < stages) made.outputs = border;
  return made;
}

parallel::Stage gpt_stage(const Setting& setting, int stage, int stages) {
  const auto graph = models::gpt({.vocabulary = kWords,
                                  .context = kContext,
                                  .layers = setting.layers * stages,
                                  .heads = 4,
                                  .features = setting.width,
                                  .tied = false});
  std::vector<std::string> cuts;
  for (int s = 1; s < stages; ++s)
    cuts.push_back(fmt::format("transformer.h.{}.ln_1", setting.layers * s));
  torch::manual_seed(7);
  return parallel::stage_of(
      std::make_shared<parallel::GraphStage>(graph, parallel::ranges_by_names(graph, cuts), stage));
}

layout::Schedule schedule_of(const Setting& setting, int ranks) {
  return layout::schedule_by_name(setting.schedule,
                                  {.ranks = ranks, .microbatches = setting.microbatches});
}

// Made by one thread: they draw from LibTorch's default generator.
std::vector<parallel::Stage> stages_of(const Setting& setting, int ranks) {
  const int count = schedule_of(setting, ranks).stages();
  std::vector<parallel::Stage> stages;
  for (int stage = 0; stage < count; ++stage)
    stages.push_back(setting.mode == "pipeline-gpt" ? gpt_stage(setting, stage, count)
                                                    : mlp_stage(setting, stage, count));
  return stages;
}

Step pipeline_step(const Setting& setting, const Group& group,
                   const std::vector<parallel::Stage>& stages) {
  const bool gpt = setting.mode == "pipeline-gpt";
  const layout::Schedule schedule = schedule_of(setting, group.size());
  std::vector<parallel::Stage> chunks;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    chunks.push_back(stages[static_cast<size_t>(schedule.stage_of(group.rank(), chunk))]);
  const auto pipeline = std::make_shared<parallel::Pipeline>(group, schedule, std::move(chunks),
                                                             parallel::PipelineOptions{});
  const int64_t rows = setting.rows;
  const at::Tensor x =
      gpt ? at::randint(kWords, {rows, kContext}, at::kLong) : at::randn({rows, setting.width});
  const at::Tensor y = gpt ? at::randint(kWords, {rows * kContext}, at::kLong) : at::randn_like(x);
  const double share = 1.0 / setting.microbatches;
  const parallel::Pipeline::Batch batch{
      .sizes = std::vector<int64_t>(static_cast<size_t>(setting.microbatches), rows),
      .inputs = [x](int) { return std::vector{x}; },
      .loss =
          [=](int, at::TensorList out) {
            return share * (gpt ? at::cross_entropy_loss(out[0].view({-1, kWords}), y)
                                : at::mse_loss(out[0], y));
          }};
  return [pipeline, batch] { pipeline->step(batch); };
}

Step tensor_step(const Setting& setting, const parallel::TensorGroup& group) {
  std::vector<parallel::Mlp> layers;
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < setting.layers; ++i) {
    layers.emplace_back(
        group, parallel::MlpOptions{.features = setting.width, .hidden = 4 * setting.width},
        parallel::Initial{.seed = 1, .name = std::to_string(i)});
    for (const at::Tensor& parameter : layers.back()->parameters()) parameters.push_back(parameter);
  }
  // The same on all ranks.
  const at::Tensor x =
      at::linspace(-1, 1, setting.rows * setting.width).sin().view({setting.rows, setting.width});
  return [=]() mutable {
    at::Tensor y = x;
    for (parallel::Mlp& layer : layers) y = layer(y);
    torch::autograd::grad({y.square().mean()}, parameters);
  };
}

double milliseconds(int64_t steps, const Step& step) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < steps; ++i) step();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return took.count() / static_cast<double>(steps);
}

void print(const Setting& setting, int ranks, nlohmann::ordered_json figures) {
  nlohmann::ordered_json line{
      {"bench", "model_parallel"}, {"mode", setting.mode},     {"ranks", ranks},
      {"width", setting.width},    {"layers", setting.layers}, {"rows", setting.rows}};
  line.update(figures);
  fmt::print("{}\n", line.dump());
}

void measure_blocks(const Setting& setting) {
  at::set_num_threads(1);
  const Step plain = tensor_step(setting, parallel::TensorGroup(1));
  const Step blocks = tensor_step(setting, parallel::TensorGroup(setting.blocks));
  for (const Step& step : {plain, blocks}) milliseconds(setting.steps, step);
  const auto ms = bench::in_turn(
      setting.rounds, [&] { return milliseconds(setting.steps, plain); },
      [&] { return milliseconds(setting.steps, blocks); });
  print(setting, 1,
        {{"blocks", setting.blocks},
         {"plain_ms", ms.one},
         {"blocks_ms", ms.other},
         {"ratio", ms.ratio},
         {"least", ms.least},
         {"most", ms.most}});
}

void measure_ranks(const Setting& setting, Strategy& strategy) {
  const int ranks = strategy.num_replicas_in_sync();
  const bool tensor = setting.mode == "tensor";
  const auto stages = tensor ? std::vector<parallel::Stage>() : stages_of(setting, ranks);
  std::vector<Step> steps(static_cast<size_t>(ranks));
  strategy.run([&](ReplicaContext& replica) {
    at::set_num_threads(1);
    const Group group = replica.group();
    steps[static_cast<size_t>(replica.rank())] =
        tensor ? tensor_step(setting, parallel::TensorGroup(group, ranks))
               : pipeline_step(setting, group, stages);
  });
  // The slowest rank's.
  const auto round = [&](int64_t count) {
    std::vector<double> ms(steps.size());
    strategy.run([&](ReplicaContext& replica) {
      replica.group().barrier();
      const auto rank = static_cast<size_t>(replica.rank());
      ms[rank] = milliseconds(count, steps[rank]);
    });
    return std::ranges::max(ms);
  };
  round(setting.steps);  // warms up
  if (setting.serve) {
    fmt::print("{{}}\n");
    std::fflush(stdout);
    for (int64_t count = 0; std::cin >> count;) {
      fmt::print("{}\n", nlohmann::json{{"step_ms", round(count)}}.dump());
      std::fflush(stdout);
    }
    return;
  }
  std::vector<double> ms;
  for (int64_t i = 0; i < setting.rounds; ++i) ms.push_back(round(setting.steps));
  if (!strategy.world().chief) return;
  const auto [least, most] = std::ranges::minmax(ms);
  nlohmann::ordered_json figures{{"step_ms", bench::median(ms)}, {"least", least}, {"most", most}};
  if (!tensor) figures["schedule"] = setting.schedule;
  print(setting, ranks, figures);
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app("What pipelines and layers in blocks cost; flags of a strategy are taken too");
  app.add_option("mode", setting.mode)
      ->required()
      ->check(CLI::IsMember({"pipeline-mlp", "pipeline-gpt", "tensor", "blocks"}));
  const auto number = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("--schedule", setting.schedule, "Of a pipeline")->capture_default_str();
  number("--microbatches", setting.microbatches, "Of a step");
  number("--width", setting.width, "Units, or features");
  number("--layers", setting.layers, "Of a stage, or of the row of MLPs");
  number("--rows", setting.rows, "Of a microbatch, or of the batch");
  number("--blocks", setting.blocks, "Of mode blocks");
  number("--steps", setting.steps, "Of a round");
  number("--rounds", setting.rounds, "After one that warms up");
  app.add_flag("--torch-linear", setting.torch_linear, "pipeline-mlp by torch::linear");
  app.add_flag("--serve", setting.serve, "Takes numbers of steps from stdin");
  try {
    auto strategy = strategy_from_flags(argc, argv);
    CLI11_PARSE(app, argc, argv);
    if (setting.mode == "blocks")
      measure_blocks(setting);
    else
      measure_ranks(setting, strategy);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
