// What model parallel costs: forward and backward of a step, and of a sharded one its update.
//
//   bench_model_parallel pipeline-mlp --schedule 1f1b --strategy mirrored --replicas 2
//   bench_model_parallel pipeline-gpt --schedule gpipe --strategy mirrored --replicas 2
//   bench_model_parallel tensor --strategy mirrored --replicas 2
//   tutti run -n 2 bench_model_parallel sharded-mlp --strategy multi_worker --shard parameters
//   bench_model_parallel blocks
//
// pipeline-mlp  a row of dense layers of --width units with ReLU, --layers a stage, --rows a
//               microbatch
// pipeline-gpt  GPT of --layers blocks a stage, --width features, context 64, 65 words, a head of
//               its own, --rows windows a microbatch; cross-entropy
// tensor        --layers MLPs one behind the other, --width features and 4 times as many hidden
//               units, each cut into as many blocks as there are ranks; --rows rows
// sharded-mlp   the row of layers, or the GPT, of --layers in all, on replicas of --rows rows or
// sharded-gpt   windows each, with Adam's updates; --shard says what of it is cut
// blocks        tensor on one device in --blocks blocks, in turn with it in one: their ratio
//
// Dense layers are nn::dense; --torch-linear gives those of the mlp modes PyTorch's products.
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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/models/gpt.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/graph_module.h"
#include "tutti/parallel/model/graph_stage.h"
#include "tutti/parallel/stages/pipeline.h"
#include "tutti/strategy/modules/replicated.h"
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

nn::Graph gpt(const Setting& setting, int64_t layers) {
  return models::gpt({.vocabulary = kWords,
                      .context = kContext,
                      .layers = layers,
                      .heads = 4,
                      .features = setting.width,
                      .tied = false});
}

parallel::Stage gpt_stage(const Setting& setting, int stage, int stages) {
  const auto graph = gpt(setting, setting.layers * stages);
  std::vector<std::string> cuts;
  for (int s = 1; s < stages; ++s)
    cuts.push_back(fmt::format("transformer.h.{}.ln_1", setting.layers * s));
  torch::manual_seed(7);
  return parallel::stage_of(
      std::make_shared<parallel::GraphStage>(graph, parallel::ranges_by_names(graph, cuts), stage));
}

mesh::Schedule schedule_of(const Setting& setting, int ranks) {
  return mesh::schedule_by_name(setting.schedule,
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

// Of a microbatch, or of a replica.
struct Samples {
  Samples(const Setting& setting, bool is_gpt)
      : gpt(is_gpt),
        x(gpt ? at::randint(kWords, {setting.rows, kContext}, at::kLong)
              : at::randn({setting.rows, setting.width})),
        y(gpt ? at::randint(kWords, {setting.rows * kContext}, at::kLong) : at::randn_like(x)) {}

  at::Tensor loss(const at::Tensor& output) const {
    return gpt ? at::cross_entropy_loss(output.view({-1, kWords}), y) : at::mse_loss(output, y);
  }

  bool gpt;
  at::Tensor x, y;
};

Step pipeline_step(const Setting& setting, const Group& group,
                   const std::vector<parallel::Stage>& stages) {
  const mesh::Schedule schedule = schedule_of(setting, group.size());
  std::vector<parallel::Stage> chunks;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    chunks.push_back(stages[static_cast<size_t>(schedule.stage_of(group.rank(), chunk))]);
  const auto pipeline = std::make_shared<parallel::Pipeline>(group, schedule, std::move(chunks),
                                                             parallel::PipelineOptions{});
  const Samples samples(setting, setting.mode == "pipeline-gpt");
  const double share = 1.0 / setting.microbatches;
  const parallel::Pipeline::Batch batch{
      .sizes = std::vector<int64_t>(static_cast<size_t>(setting.microbatches), setting.rows),
      .inputs = [samples](int) { return std::vector{samples.x}; },
      .loss = [=](int, at::TensorList out) { return share * samples.loss(out[0]); }};
  return [pipeline, batch] { pipeline->step(batch); };
}

// MLPs one behind the other: columns of the first layer of each, rows of the second.
Step tensor_step(const Setting& setting, const parallel::TensorGroup& group) {
  const auto input = nn::input({setting.width});
  auto output = input;
  for (int64_t i = 0; i < setting.layers; ++i) {
    const std::string name = std::to_string(i);
    output = nn::gelu()(nn::linear(4 * setting.width).named(name + ".up")(output));
    output = nn::linear(setting.width).named(name + ".down")(output);
  }
  const nn::Graph graph(input, output);
  const parallel::Plan plan{{"*.up", parallel::columns()}, {"*.down", parallel::rows()}};
  const auto module =
      parallel::make_stages(graph, parallel::ranges_by_names(graph, {}), {0}, group, plan)[0];
  const std::vector<at::Tensor> parameters = module->parameters();
  // The same on all ranks.
  const at::Tensor x =
      at::linspace(-1, 1, setting.rows * setting.width).sin().view({setting.rows, setting.width});
  return [=] {
    const at::Tensor y = module->forward({x})[0];
    torch::autograd::grad({y.square().mean()}, parameters);
  };
}

// A model that all replicas have, as far as the strategy does not cut it.
struct Replicas {
  Replicas(const Setting& setting, const Strategy& strategy)
      : gpt(setting.mode == "sharded-gpt"),
        modules(strategy,
                [&](int) -> std::shared_ptr<torch::nn::Module> {
                  if (gpt) return nn::make_module(::gpt(setting, setting.layers));
                  return std::make_shared<DenseStage>(setting.width, setting.layers,
                                                      setting.torch_linear);
                }),
        optimizer(modules, optim::adam({.learning_rate = 1e-3})) {}

  at::Tensor forward(const ReplicaContext& replica, const at::Tensor& x) const {
    torch::nn::Module& module = *modules.module(replica);
    return gpt ? module.as<nn::GraphModule>()->forward(x) : module.as<DenseStage>()->forward(x);
  }

  bool gpt;
  ReplicatedModules modules;
  Optimizer optimizer;
};

// Of one Strategy::run.
Step sharded_step(const Setting& setting, Replicas& replicas, ReplicaContext& replica) {
  const Samples samples(setting, replicas.gpt);
  const double share = 1.0 / replica.num_replicas_in_sync();
  return [samples, share, &replicas, &replica] {
    const at::Tensor output = replicas.forward(replica, samples.x);
    replicas.optimizer.minimize(replica, share * samples.loss(output));
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
  const bool pipeline = setting.mode.starts_with("pipeline");
  const auto stages = pipeline ? stages_of(setting, ranks) : std::vector<parallel::Stage>();
  std::optional<Replicas> replicas;
  if (setting.mode.starts_with("sharded")) replicas.emplace(setting, strategy);
  std::vector<Step> steps(static_cast<size_t>(ranks));
  strategy.run([&](ReplicaContext& replica) {
    at::set_num_threads(1);
    if (replicas) return;
    const Group group = replica.group();
    steps[static_cast<size_t>(replica.rank())] =
        pipeline ? pipeline_step(setting, group, stages)
                 : tensor_step(setting, parallel::TensorGroup(group, ranks));
  });
  // The slowest rank's of this process.
  const auto round = [&](int64_t count) {
    std::vector<double> ms(steps.size());
    strategy.run([&](ReplicaContext& replica) {
      const auto rank = static_cast<size_t>(replica.rank());
      if (replicas) steps[rank] = sharded_step(setting, *replicas, replica);
      replica.group().barrier();
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
  if (pipeline) figures["schedule"] = setting.schedule;
  print(setting, ranks, figures);
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app("What pipelines and layers in blocks cost; flags of a strategy are taken too");
  app.add_option("mode", setting.mode)
      ->required()
      ->check(CLI::IsMember(
          {"pipeline-mlp", "pipeline-gpt", "tensor", "sharded-mlp", "sharded-gpt", "blocks"}));
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
  app.add_flag("--torch-linear", setting.torch_linear, "Of the mlp modes, by torch::linear");
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
