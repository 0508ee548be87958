// How idle the ranks of a pipeline are, beside what the simulator says.
//
//   bench_pipeline_bubble                            stages that sleep, 2 to 8 ranks, all schedules
//   bench_pipeline_bubble --ranks 4 --schedules zb-v --sleep-ms 20
//   bench_pipeline_bubble --compute                  stages that compute, 2 ranks
//
// Ranks are threads. The bubble is 1 - busy / (ranks x time), from the moment in which all ranks
// have met until the last one has its gradients. Busy is what stages measured of themselves while
// the step ran, F, B and W; all else (messages, sums of gradients, waiting) is the bubble.
//
// A stage that sleeps takes as long for F, B and W each, and B takes both where backward is not
// split, so that more ranks than cores do not matter. Waking up does, tenths of a millisecond each
// time and more beside neighbours: sleep long. A stage that computes is a row
// of dense layers; the simulator gets the mean of what each stage's F, B and W took in that step.
// Medians over the steps, and the least and most. Exit code 1: a bubble is off by more than
// --within points.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/mesh/simulate.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/weight_gradients.h"
#include "tutti/parallel/stages/pipeline.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

struct Setting {
  std::vector<int> ranks{2, 3, 4, 5, 6, 7, 8};
  int microbatches = 8;
  std::vector<std::string> schedules = mesh::schedule_names();
  double sleep_ms = 12;
  bool compute = false;
  int64_t width = 1024, layers = 2, rows = 512;
  int steps = 5;
  double within = 0;
  bool json = false;
};

double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

// What a stage took, of one step: by mesh::Kind.
struct Busy {
  std::array<double, 3> seconds{};
  TimePoint began{};  // the part that goes on

  double& of(mesh::Kind kind) { return seconds.at(static_cast<size_t>(kind)); }
  void begin() { began = Clock::now(); }
  void end(mesh::Kind kind) { of(kind) += seconds_between(began, Clock::now()); }
  double total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
};

void sleep_for(double ms) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

// x as it is. Its backward pass takes a while, and the rest of it is put off where B is split.
class Sleep : public torch::autograd::Function<Sleep> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, Busy* busy, double ms) {
    busy->begin();
    context->save_for_backward({weight});
    context->saved_data["busy"] = reinterpret_cast<int64_t>(busy);
    context->saved_data["ms"] = ms;
    sleep_for(ms);
    busy->end(mesh::Kind::forward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* busy = reinterpret_cast<Busy*>(context->saved_data["busy"].toInt());
    const double ms = context->saved_data["ms"].toDouble();
    const at::Tensor weight = context->get_saved_variables().at(0);
    auto* const later = nn::WeightGradients::current();
    busy->begin();
    sleep_for(later != nullptr ? ms : 2 * ms);
    busy->end(mesh::Kind::backward);
    at::Tensor of_weight;
    if (later == nullptr)
      of_weight = at::ones_like(weight);
    else
      later->put_off(weight, [busy, ms, weight] {
        busy->begin();
        sleep_for(ms);
        busy->end(mesh::Kind::weight);
        return at::ones_like(weight);
      });
    return {gradients.at(0), of_weight, {}, {}};
  }
};

// x as it is: where the backward pass of a stage begins (behind its layers) and ends (before them).
// `mark` is a parameter, without which the pass of the first stage would end before.
class Mark : public torch::autograd::Function<Mark> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& mark, Busy* busy, bool begins) {
    context->save_for_backward({mark});
    context->saved_data["busy"] = reinterpret_cast<int64_t>(busy);
    context->saved_data["begins"] = begins;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* busy = reinterpret_cast<Busy*>(context->saved_data["busy"].toInt());
    const bool begins = context->saved_data["begins"].toBool();
    if (!begins) busy->end(mesh::Kind::backward);
    // Products that are put off are computed in the order in which they were: so are these two.
    if (auto* const later = nn::WeightGradients::current(); later != nullptr)
      later->put_off(at::empty({0}), [busy, begins] {
        begins ? busy->begin() : busy->end(mesh::Kind::weight);
        return at::empty({0});
      });
    if (begins) busy->begin();
    return {gradients.at(0), at::zeros_like(context->get_saved_variables().at(0)), {}, {}};
  }
};

struct SleepyImpl : torch::nn::Module {
  SleepyImpl() { weight = register_parameter("weight", at::zeros({1})); }
  at::Tensor weight;
};

struct DenseImpl : torch::nn::Module {
  DenseImpl(int64_t width, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      layers.push_back(
          register_module(std::to_string(i), std::make_shared<nn::LinearImpl>(width, width)));
    mark = register_parameter("mark", at::zeros({1}));
  }
  at::Tensor mark;
  std::vector<std::shared_ptr<nn::LinearImpl>> layers;
};

std::vector<parallel::Border> border(bool there, int64_t width) {
  return there ? std::vector<parallel::Border>{{.shape = {width}}}
               : std::vector<parallel::Border>{};
}

parallel::Stage stage_of(const Setting& setting, int stage, int stages, Busy* busy) {
  const int64_t width = setting.compute ? setting.width : 1;
  parallel::Stage made{.module = nullptr,
                       .forward = nullptr,
                       .inputs = border(stage > 0, width),
                       .outputs = border(stage + 1 < stages, width)};
  if (!setting.compute) {
    const auto module = std::make_shared<SleepyImpl>();
    made.module = module;
    made.forward = [module, busy, ms = setting.sleep_ms](at::TensorList x) {
      return std::vector{Sleep::apply(x[0], module->weight, busy, ms)};
    };
    return made;
  }
  const auto module = std::make_shared<DenseImpl>(width, setting.layers);
  made.module = module;
  made.forward = [module, busy](at::TensorList x) {
    busy->begin();
    at::Tensor y = Mark::apply(x[0], module->mark, busy, false);
    for (const auto& layer : module->layers)
      y = nn::dense(y, layer->weight, layer->bias, nn::Activation::relu);
    y = Mark::apply(y, module->mark, busy, true);
    busy->end(mesh::Kind::forward);
    return std::vector{y};
  };
  return made;
}

// Of one step.
struct Measured {
  double bubble = 0;
  double simulated = 0;
  double seconds = 0;
};

// What ranks share: each writes its own place.
struct Shared {
  std::vector<Busy> by_stage;
  std::vector<TimePoint> began, ended;
};

Measured measured(const mesh::Schedule& schedule, const Shared& shared, const Setting& setting) {
  const double seconds =
      seconds_between(std::ranges::max(shared.began), std::ranges::max(shared.ended));
  double busy = 0;
  mesh::Costs costs;
  for (const Busy& stage : shared.by_stage) {
    busy += stage.total();
    const auto mean = [&](size_t kind) { return stage.seconds.at(kind) / schedule.microbatches; };
    // B of the simulator is of the input alone; W is added to it where backward is not split.
    costs.stages.push_back({.forward = mean(0), .backward = mean(1), .weight = mean(2)});
  }
  if (!setting.compute) costs.stages.clear();
  return {.bubble = 1 - busy / (schedule.ranks() * seconds),
          .simulated = mesh::simulate(schedule, costs).bubble(),
          .seconds = seconds};
}

void run_rank(Group group, const mesh::Schedule& schedule, const Setting& setting, Shared& shared,
              std::vector<Measured>& steps) {
  at::set_num_threads(1);
  const auto rank = static_cast<size_t>(group.rank());
  std::vector<parallel::Stage> chunks;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const int stage = schedule.stage_of(group.rank(), chunk);
    chunks.push_back(
        stage_of(setting, stage, schedule.stages(), &shared.by_stage[static_cast<size_t>(stage)]));
  }
  parallel::Pipeline pipeline(group, schedule, std::move(chunks), {});
  const int64_t rows = setting.compute ? setting.rows : 1;
  const at::Tensor x = at::ones({rows, setting.compute ? setting.width : 1});
  const parallel::Pipeline::Batch batch{
      .sizes = std::vector<int64_t>(static_cast<size_t>(schedule.microbatches), rows),
      .inputs = [&](int) { return std::vector{x}; },
      .loss = [](int, at::TensorList y) { return y[0].sum(); }};
  for (int step = -1; step < setting.steps; ++step) {  // the first one warms up
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      shared.by_stage[static_cast<size_t>(schedule.stage_of(group.rank(), chunk))] = {};
    group.barrier();
    shared.began[rank] = Clock::now();
    pipeline.step(batch);
    shared.ended[rank] = Clock::now();
    group.barrier();
    if (rank == 0 && step >= 0) steps.push_back(measured(schedule, shared, setting));
    group.barrier();
  }
}

std::vector<Measured> steps_of(const mesh::Schedule& schedule, const Setting& setting) {
  const auto ranks = static_cast<size_t>(schedule.ranks());
  Shared shared{.by_stage = std::vector<Busy>(static_cast<size_t>(schedule.stages())),
                .began = std::vector<TimePoint>(ranks),
                .ended = std::vector<TimePoint>(ranks)};
  std::vector<Measured> steps;
  std::vector<std::exception_ptr> thrown(ranks);
  const auto engines = make_shm_threads(schedule.ranks());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        run_rank(Group(engines[rank]), schedule, setting, shared, steps);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& one : thrown)
    if (one) std::rethrow_exception(one);
  return steps;
}

// Interleaved takes multiples of the ranks; those without a bubble want two a rank.
std::vector<int> microbatches_of(const std::string& schedule, int ranks, int microbatches) {
  if (schedule == "interleaved") return {(microbatches + ranks - 1) / ranks * ranks};
  if ((schedule == "zb-v" || schedule == "dualpipe-v") && microbatches < 2 * ranks)
    return {microbatches, 2 * ranks};
  return {microbatches};
}

// The difference in points, the median over the steps.
double print(const mesh::Schedule& schedule, const std::vector<Measured>& steps,
             const Setting& setting) {
  std::vector<double> bubbles, simulated, off, seconds;
  for (const Measured& step : steps) {
    bubbles.push_back(100 * step.bubble);
    simulated.push_back(100 * step.simulated);
    off.push_back(100 * (step.bubble - step.simulated));
    seconds.push_back(1e3 * step.seconds);
  }
  const auto [least, most] = std::ranges::minmax(off);
  if (setting.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"bench", "pipeline_bubble"},
                                              {"stages", setting.compute ? "compute" : "sleep"},
                                              {"schedule", schedule.name},
                                              {"ranks", schedule.ranks()},
                                              {"microbatches", schedule.microbatches},
                                              {"step_ms", bench::median(seconds)},
                                              {"bubble_percent", bench::median(bubbles)},
                                              {"simulated_percent", bench::median(simulated)},
                                              {"off_points", bench::median(off)},
                                              {"off_least", least},
                                              {"off_most", most}}
                           .dump());
  else
    fmt::print("{:<13}{:>6}{:>14}{:>10.1f}{:>9.1f} %{:>10.1f} %{:>9.2f} ({:.2f}, {:.2f})\n",
               schedule.name, schedule.ranks(), schedule.microbatches, bench::median(seconds),
               bench::median(bubbles), bench::median(simulated), bench::median(off), least, most);
  std::fflush(stdout);
  return std::abs(bench::median(off));
}

int measure(const Setting& setting) {
  if (!setting.json)
    fmt::print("{:<13}{:>6}{:>14}{:>10}{:>11}{:>12}{:>9} (least, most)\n", "schedule", "ranks",
               "microbatches", "step ms", "bubble", "simulated", "points");
  double worst = 0;
  for (const int ranks : setting.ranks)
    for (const std::string& name : setting.schedules)
      for (const int microbatches : microbatches_of(name, ranks, setting.microbatches)) {
        const auto schedule =
            mesh::schedule_by_name(name, {.ranks = ranks, .microbatches = microbatches});
        worst = std::max(worst, print(schedule, steps_of(schedule, setting), setting));
      }
  if (!setting.json)
    fmt::print("at most {:.2f} points off; bound {:g}: {}\n", worst, setting.within,
               worst <= setting.within ? "held" : "NOT held");
  return worst <= setting.within ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app("Idle time of pipelines, measured and simulated");
  app.add_option("--ranks", setting.ranks, "Of the pipeline, with commas; computing: 2")
      ->delimiter(',')
      ->check(CLI::Range(2, 64));
  app.add_option("--microbatches", setting.microbatches,
                 "More where a schedule wants them: interleaved multiples of the ranks, zb-v and "
                 "dualpipe-v two a rank as well")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--schedules", setting.schedules, "With commas")->delimiter(',');
  app.add_option("--sleep-ms", setting.sleep_ms, "Of F, B and W of a stage")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--compute", setting.compute, "Stages are dense layers instead");
  app.add_option("--width", setting.width, "Units of those layers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", setting.layers, "Of a stage")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rows", setting.rows, "Of a microbatch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", setting.steps, "After one that warms up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--within", setting.within, "Points; 3 where stages sleep, 5 where they compute");
  app.add_flag("--json", setting.json, "A line of JSON each");
  CLI11_PARSE(app, argc, argv);
  if (setting.within == 0) setting.within = setting.compute ? 5 : 3;
  if (setting.compute && app.count("--ranks") == 0) setting.ranks = {2};
  try {
    return measure(setting);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
