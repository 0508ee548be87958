// Steps of an emulated device: a network of the zoo has its true parameters, and gradients, sums,
// updates and messages are those of the library; forward and backward are sleeps. So hosts that
// share few cores train as if each had a device of its own, and bench/plan_runs.py holds
// predictions against runs.
//
//   bench_emulated_step resnet18 --sample-us-forward 300 --sample-us-backward 600 --batch 32
//   tutti run -n 2 bench_emulated_step lenet --forward-ms 5 --backward-ms 10 --strategy
//   multi_worker bench_emulated_step wide --forward-ms 5 --sample-us-backward 90 --measure FILE
//
// Forward sleeps --forward-ms + rows x --sample-us-forward, backward likewise, both times a
// lognormal factor of --jitter, drawn for each rank and step. Parameters are dealt to --pieces in
// equal runs; each piece takes an equal share of the time, waits in forward until its parameters
// are there, and in backward gives their gradients when its share is over, as layers do. The
// optimizer is sgd, which leaves most of the cores to who shares them.
//
// --flat: a loop of its own under `tutti run` instead of a strategy. One all_reduce in a tcp group
// of all processes adds all gradients after backward, and each process updates all parameters.
//
// Prints a line of JSON of rank 0, over the timed steps: step_ms (median, mean, least, most; from
// update to update), compute_ms (median, mean: what forward and backward took, without waits for
// parameters), cpu_ms (of this process, a step). --measure FILE writes a machine file of one
// replica instead (docs/formats/machine.md), its engines not measured.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/cli/zoo.h"
#include "tutti/cluster/join/exit_code.h"
#include "tutti/cluster/join/join.h"
#include "tutti/models/models.h"
#include "tutti/nn/graph_module.h"
#include "tutti/plan/arithmetic.h"
#include "tutti/plan/measure.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"

#include "bench/rounds.h"
#include "bench/torch_errors.h"

namespace {

using namespace tutti;
using torch::autograd::variable_list;

// Of a pass: so long, and so much more for each sample.
struct PassTime {
  double ms = 0, sample_us = 0;
  double seconds(int64_t rows) const {
    return 1e-3 * ms + 1e-6 * sample_us * static_cast<double>(rows);
  }
};

struct Setting {
  std::string model;
  double width = 1;
  int64_t batch = 32;
  PassTime forward, backward;
  double jitter = 0;
  bool flat = false;
  int pieces = 8;
  int64_t steps = 20, warm_up = 3;
  std::string measure;
  std::vector<int64_t> batches{8, 16, 32, 64, 128};
  double seconds = 5;
};

// A width is for small networks of doodles; as they are, those that `tutti plan` knows.
nn::Graph graph_of(const Setting& setting) {
  return setting.width == 1 ? cli::zoo_network(setting.model).graph
                            : models::model_by_name(setting.model, {.width = setting.width});
}

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// What computes one replica; of its thread alone.
class EmulatedDevice {
 public:
  EmulatedDevice(const std::vector<at::Tensor>& parameters, const Setting& setting, int rank)
      : setting_(setting), rank_(rank) {
    const auto count = std::ssize(parameters);
    const auto pieces = std::min<int64_t>(setting.pieces, count);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const auto first = parameters.begin() + count * piece / pieces;
      const auto last = parameters.begin() + count * (piece + 1) / pieces;
      Piece made{.parameters = {first, last}};
      for (const at::Tensor& parameter : made.parameters)
        made.gradients.push_back(at::full_like(parameter, 1e-3, at::kFloat));
      pieces_.push_back(std::move(made));
    }
    prctl(PR_SET_TIMERSLACK, 1);  // ns: sleeps end when they should
  }

  // `prepare` before forward; `minimize(loss)`: backward, sums and the update.
  template <class Prepare, class Minimize>
  plan::StepSeconds step(int64_t rows, Prepare&& prepare, Minimize&& minimize);
  plan::StepSeconds step(Optimizer& optimizer, ReplicaContext& replica, int64_t rows) {
    return step(
        rows, [&] { optimizer.prepare(replica); },
        [&](const at::Tensor& loss) { optimizer.minimize(replica, loss); });
  }

 private:
  struct Piece {
    variable_list parameters, gradients{};
  };
  class Pass;

  // The same for each pass of a step; its median is 1.
  double jitter_of_step(int64_t step) const {
    std::seed_seq seed{int64_t{rank_}, step};
    std::mt19937_64 generator(seed);
    return std::exp(setting_.jitter * std::normal_distribution<double>()(generator));
  }

  // A piece's share of a pass of this step. The device goes on while its host works: what that
  // takes between two pieces, and waking up late, delays none but the last.
  void compute(const PassTime& pass) {
    const std::chrono::duration<double> share(factor_ * pass.seconds(rows_) /
                                              static_cast<double>(pieces_.size()));
    due_ += std::chrono::duration_cast<Clock::duration>(share);
    std::this_thread::sleep_until(due_);
  }

  const Setting& setting_;
  int rank_;
  std::vector<Piece> pieces_;
  int64_t steps_ = 0, rows_ = 0;
  double factor_ = 1;
  double waited_ = 0;     // in forward, for parameters
  TimePoint due_{};       // the end of the piece that is computed
  TimePoint computed_{};  // the end of backward
};

// x as it is, after a piece's share of the pass.
class EmulatedDevice::Pass : public torch::autograd::Function<Pass> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            at::TensorList parameters, EmulatedDevice* device, size_t piece) {
    context->saved_data["device"] = reinterpret_cast<int64_t>(device);
    context->saved_data["piece"] = static_cast<int64_t>(piece);
    const TimePoint begin = Clock::now();
    for (const at::Tensor& parameter : parameters) require_ready(parameter);
    const TimePoint ready = Clock::now();
    device->waited_ += seconds_between(begin, ready);
    device->due_ += ready - begin;
    device->compute(device->setting_.forward);
    return x.clone();
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    auto* device = reinterpret_cast<EmulatedDevice*>(context->saved_data["device"].toInt());
    const auto piece = static_cast<size_t>(context->saved_data["piece"].toInt());
    if (piece + 1 == device->pieces_.size()) device->due_ = Clock::now();
    device->compute(device->setting_.backward);
    variable_list all{gradients.at(0)};
    // New tensors of the same memory: autograd takes these without a copy.
    for (const at::Tensor& one : device->pieces_[piece].gradients) all.push_back(one.detach());
    all.insert(all.end(), {at::Tensor(), at::Tensor()});
    if (piece == 0) device->computed_ = Clock::now();
    return all;
  }
};

template <class Prepare, class Minimize>
plan::StepSeconds EmulatedDevice::step(int64_t rows, Prepare&& prepare, Minimize&& minimize) {
  const TimePoint begin = Clock::now();
  rows_ = rows;
  factor_ = jitter_of_step(steps_++);
  prepare();
  due_ = Clock::now();
  waited_ = seconds_between(begin, due_);
  at::Tensor loss = at::zeros({});
  for (size_t piece = 0; piece < pieces_.size(); ++piece)
    loss = Pass::apply(loss, at::TensorList(pieces_[piece].parameters), this, piece);
  const TimePoint forward = Clock::now();
  minimize(loss);
  return {.forward = seconds_between(begin, forward) - waited_,
          .backward = seconds_between(forward, computed_),
          .update = seconds_between(computed_, Clock::now())};
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Milliseconds of rank 0.
struct Figures {
  std::vector<double> step, compute;
  double cpu = 0;
};

void print(const Setting& setting, std::string_view strategy, int replicas, int64_t parameters,
           const Figures& figures) {
  const auto [least, most] = std::ranges::minmax(figures.step);
  const nlohmann::ordered_json line{{"bench", "emulated_step"},
                                    {"model", setting.model},
                                    {"bytes", 4 * parameters},
                                    {"strategy", strategy},
                                    {"replicas", replicas},
                                    {"batch", setting.batch},
                                    {"steps", setting.steps},
                                    {"step_ms", bench::median(figures.step)},
                                    {"step_ms_mean", mean(figures.step)},
                                    {"step_ms_least", least},
                                    {"step_ms_most", most},
                                    {"compute_ms", bench::median(figures.compute)},
                                    {"compute_ms_mean", mean(figures.compute)},
                                    {"cpu_ms", figures.cpu}};
  fmt::print("{}\n", line.dump());
}

// `step` makes one; figures of whoever is first.
template <class Step>
void time_steps(const Setting& setting, bool first, Figures& figures, Step&& step) {
  for (int64_t i = 0; i < setting.warm_up; ++i) step();
  const double cpu_before = cpu_seconds();
  for (int64_t i = 0; i < setting.steps; ++i) {
    const TimePoint begin = Clock::now();
    const plan::StepSeconds took = step();
    if (!first) continue;
    figures.step.push_back(1e3 * seconds_between(begin, Clock::now()));
    figures.compute.push_back(1e3 * (took.forward + took.backward));
  }
  if (first) figures.cpu = 1e3 * (cpu_seconds() - cpu_before) / static_cast<double>(setting.steps);
}

void measure_steps(const Setting& setting, Strategy& strategy) {
  const nn::Graph graph = graph_of(setting);
  const Replicated<nn::GraphModule> net(strategy, [&] { return nn::make_module(graph); });
  Optimizer optimizer(net, optim::sgd());
  Figures figures;
  strategy.run([&](ReplicaContext& replica) {
    EmulatedDevice device(optimizer.parameters(replica), setting, replica.rank());
    time_steps(setting, replica.rank() == 0, figures,
               [&] { return device.step(optimizer, replica, setting.batch); });
  });
  if (strategy.world().chief)
    print(setting, strategy.kind(), strategy.num_replicas_in_sync(), graph.num_parameters(),
          figures);
}

// Gradients move into `sums`, one behind the other.
void gather_gradients(const std::vector<at::Tensor>& parameters, const at::Tensor& sums) {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor place = sums.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    place.copy_(parameter.grad());
    parameter.mutable_grad() = place;
    begin += parameter.numel();
  }
}

void measure_flat(const Setting& setting) {
  const nn::Graph graph = graph_of(setting);
  const auto net = nn::make_module(graph);
  const std::vector<at::Tensor> parameters = net->parameters();
  Group group = join_replicas(1, {.engine = "tcp"}).front();
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(1e-3));
  const at::Tensor sums = at::empty({graph.num_parameters()});
  EmulatedDevice device(parameters, setting, group.rank());
  Figures figures;
  time_steps(setting, group.rank() == 0, figures, [&] {
    return device.step(
        setting.batch, [] {},
        [&](const at::Tensor& loss) {
          loss.backward();
          gather_gradients(parameters, sums);
          group.all_reduce(span_of(sums), ReduceOp::sum).wait();
          optimizer.step();
          for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
        });
  });
  if (group.rank() == 0) print(setting, "flat", group.size(), graph.num_parameters(), figures);
}

void measure_machine(const Setting& setting) {
  const nn::Graph graph = graph_of(setting);
  Strategy strategy({.replicas = 1, .threads_per_replica = 1});
  const Replicated<nn::GraphModule> net(strategy, [&] { return nn::make_module(graph); });
  Optimizer optimizer(net, optim::sgd());
  std::optional<EmulatedDevice> device;
  const auto step = [&](int64_t batch) {
    plan::StepSeconds took;
    strategy.run([&](ReplicaContext& replica) {
      if (!device) device.emplace(optimizer.parameters(replica), setting, replica.rank());
      took = device->step(optimizer, replica, batch);
    });
    return took;
  };
  const plan::Arithmetic counted = plan::arithmetic_of(graph);
  plan::save_machine(plan::measure({.model = setting.model,
                                    .parameters = counted.parameters,
                                    .bytes = 4 * counted.parameters,
                                    .largest_parameter = 4 * counted.largest_parameter,
                                    .update_streams = 3,
                                    .step = step},
                                   {.name = "emulated",
                                    .batches = setting.batches,
                                    .seconds = setting.seconds,
                                    .most_spread = 2}),
                     setting.measure);
}

void add_flags(CLI::App& app, Setting& setting) {
  const auto positive = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  const auto not_negative = [&](const char* name, double& to, const char* help) {
    app.add_option(name, to, help)->check(CLI::NonNegativeNumber)->capture_default_str();
  };
  app.add_option("model", setting.model, "Of the zoo")->required();
  positive("--width", setting.width, "Times the units of hidden layers, of networks for doodles");
  positive("--batch", setting.batch, "Samples of a replica");
  not_negative("--forward-ms", setting.forward.ms, "Of a forward pass");
  not_negative("--backward-ms", setting.backward.ms, "Of a backward pass");
  not_negative("--sample-us-forward", setting.forward.sample_us, "More for each sample");
  not_negative("--sample-us-backward", setting.backward.sample_us, "More for each sample");
  not_negative("--jitter", setting.jitter, "Deviation of the logarithm of a step's factor");
  positive("--pieces", setting.pieces, "That a pass sleeps in");
  positive("--steps", setting.steps, "That are timed");
  positive("--warm-up", setting.warm_up, "Steps before them");
  app.add_flag("--flat", setting.flat, "A loop of its own over one tcp group of all processes");
  app.add_option("--measure", setting.measure, "Writes a machine file")->type_name("FILE");
  app.add_option("--batches", setting.batches, "Of --measure")->delimiter(',');
  positive("--seconds", setting.seconds, "Of --measure");
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reporting_errors([&] {
    install_terminate_handler();
    const StrategyOptions options = take_strategy_flags(argc, argv);
    Setting setting;
    CLI::App app("Steps of an emulated device; flags of a strategy are taken too");
    add_flags(app, setting);
    CLI11_PARSE(app, argc, argv);
    if (!setting.measure.empty()) {
      measure_machine(setting);
    } else if (setting.flat) {
      at::set_num_threads(1);  // more would spin on cores that hosts share
      measure_flat(setting);
    } else {
      Strategy strategy(options);
      measure_steps(setting, strategy);
    }
    return 0;
  });
}
