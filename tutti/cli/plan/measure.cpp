// tutti plan measure: what a step of a model takes here, as a machine file.
#include "tutti/plan/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/all_reduce.h"
#include "tutti/cli/bench/between_hosts.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/reading.h"
#include "tutti/cli/data/spec.h"
#include "tutti/cli/train/optimizer_flags.h"
#include "tutti/cli/train/text_models.h"
#include "tutti/cluster/join/join.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/plan/arithmetic.h"
#include "tutti/plan/link_fit.h"
#include "tutti/plan/predict.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"

namespace tutti::cli {
namespace {

struct MeasureFlags {
  std::string model, data, out, name;
  DataFlags data_flags;
  GptFlags gpt;
  OptimizerFlags optimizer;
  std::vector<int64_t> batches{8, 16, 32, 64, 128};
  double seconds = 15, link_seconds = 5;
  double most_spread = 0.3;
  int threads = 1;
};

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

/// One replica of a model on real samples, that trains.
class MeasuredModel {
 public:
  MeasuredModel(const MeasureFlags& flags, nn::Graph graph, const DataSpec& spec,
                data::Dataset train)
      : graph_(std::move(graph)),
        train_(std::move(train)),
        strategy_({.replicas = 1, .threads_per_replica = flags.threads, .alone = true}),
        net_(strategy_, [&] { return nn::make_module(graph_); }),
        optimizer_(net_, recipe_from(flags.optimizer)),
        loss_(loss_for(spec)) {}

  const nn::Graph& graph() const { return graph_; }

  plan::StepSeconds step(int64_t batch) {
    Epoch& epoch = epoch_of(batch);
    plan::StepSeconds seconds;
    strategy_.run([&](ReplicaContext& replica) { seconds = step_of(replica, epoch, batch); });
    return seconds;
  }

 private:
  /// Whole batches alone, from the first again after the last.
  struct Epoch {
    DistributedDataset::Batches batches;
    int64_t whole = 1, next = 0;
  };

  plan::StepSeconds step_of(ReplicaContext& replica, Epoch& epoch, int64_t batch) {
    const TimePoint begin = Clock::now();
    const int64_t number = epoch.next++ % epoch.whole;
    const auto rows = *DistributedDataset::Batches::iterator(&epoch.batches, number);
    const auto [x, y] = rows.local(replica);
    const nn::SampleContext here({.seed = 0, .step = steps_, .first_row = 0});
    const TimePoint read = Clock::now();
    optimizer_.prepare(replica);
    double sum = 0;
    const auto loss = loss_.kernel().scaled_sum(net_.local(replica)->forward(x), y,
                                                1 / static_cast<double>(batch), sum);
    const TimePoint forward = Clock::now();
    TimePoint computed = forward;
    loss.register_hook([&computed](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [&computed] { computed = Clock::now(); });
    });
    optimizer_.minimize(replica, loss);
    ++steps_;
    return {.input = seconds_between(begin, read),
            .forward = seconds_between(read, forward),
            .backward = seconds_between(forward, computed),
            .update = seconds_between(computed, Clock::now())};
  }

  Epoch& epoch_of(int64_t batch) {
    auto found = epochs_.find(batch);
    if (found == epochs_.end()) {
      auto data = strategy_.distribute(train_.shuffle().batch(batch));
      found = epochs_.emplace(batch, Epoch{data.epoch(0), train_.num_samples() / batch}).first;
    }
    return found->second;
  }

  nn::Graph graph_;
  data::Dataset train_;
  Strategy strategy_;
  Replicated<nn::GraphModule> net_;
  Optimizer optimizer_;
  Loss loss_;
  std::map<int64_t, Epoch> epochs_;
  int64_t steps_ = 0;
};

/// Of two threads here: the latency of the smallest, the rate of a large one.
plan::EngineSpeed speed_of(const std::string& engine) {
  constexpr int64_t kLarge = 16 << 20;
  const auto rows = measure_threads(2, {.engine = engine, .bytes = {8, kLarge}, .rounds = 3});
  for (const AllReduceRow& row : rows)
    if (!row.correct)
      throw Error(fmt::format("engine {}: {} bytes were added wrongly", engine, row.bytes));
  return {.latency = 1e-6 * rows.front().p50_us,
          .bytes_per_second = static_cast<double>(kLarge) / (1e-6 * rows.back().p50_us)};
}

void print(const plan::Machine& machine) {
  say("{:>8}{:>13}{:>13}{:>13}\n", "batch", "forward ms", "backward ms", "samples/s");
  for (const plan::BatchTime& time : machine.compute)
    say("{:>8}{:>13.4g}{:>13.4g}{:>13.4g}\n", time.batch, 1e3 * time.forward, 1e3 * time.backward,
        static_cast<double>(time.batch) / (time.forward + time.backward));
  say("update {:.4g} ms; input {:.3g} us a sample on {} cores; the slowest of 8 replicas takes "
      "{:.2f} "
      "times the median; memory {:.4g} MB and {:.3g} MB a sample\n"
      "all-reduce of two threads: shm {:.3g} us, {:.3g} GB/s; tcp {:.3g} us, {:.3g} GB/s\n",
      1e3 * machine.update, 1e6 * machine.input, machine.cores,
      plan::mean_of_greatest(machine.jitter, 8), 1e-6 * machine.fixed_memory,
      1e-6 * machine.sample_memory, 1e6 * machine.shm.latency, 1e-9 * machine.shm.bytes_per_second,
      1e6 * machine.tcp.latency, 1e-9 * machine.tcp.bytes_per_second);
  if (machine.link)
    say("link between {} hosts: {}\n", machine.link->hosts, plan::words_of(machine.link->wire));
}

void check_batches(const MeasureFlags& flags, int64_t samples) {
  for (int64_t batch : flags.batches)
    if (batch > samples)
      throw UsageError(
          fmt::format("--batches {}: {} has {} samples to train on; expected at most "
                      "that many",
                      batch, flags.data, samples));
}

/// The model and its data, checked.
std::unique_ptr<MeasuredModel> open(MeasureFlags& flags) {
  require_writable(flags.out, "--out");
  TrainData data = open_train_data(flags.data, flags.data_flags);
  data.spec.model = flags.model;
  if (data.spec.of_text()) data.spec.gpt = gpt_options(flags.gpt, data.spec);
  nn::Graph graph = model_for_spec(flags.model, data.spec);
  check_batches(flags, data.train.num_samples());
  return std::make_unique<MeasuredModel>(flags, std::move(graph), data.spec, data.train);
}

plan::Machine machine_of(const MeasureFlags& flags, MeasuredModel& model) {
  const nn::Graph& graph = model.graph();
  plan::Machine machine = plan::measure(
      {.model = flags.model,
       .parameters = graph.num_parameters(),
       .bytes = 4 * graph.num_parameters(),
       .largest_parameter = 4 * plan::arithmetic_of(graph).largest_parameter,
       .update_streams = 3.0 + 2 * recipe_from(flags.optimizer).rule().num_states(),
       .step = [&](int64_t batch) { return model.step(batch); }},
      {.name = flags.name,
       .batches = flags.batches,
       .seconds = flags.seconds,
       .most_spread = flags.most_spread,
       .progress = [&](size_t i, size_t count) {
         say_to(stderr, "batch {} of {}: {} samples\n", i + 1, count, flags.batches[i]);
       }});
  say_to(stderr, "engines\n");
  machine.shm = speed_of("shm");
  machine.tcp = speed_of("tcp");
  return machine;
}

void write(const plan::Machine& machine, const MeasureFlags& flags) {
  plan::save_machine(machine, flags.out);
  print(machine);
  say("wrote {}; next: tutti plan {} --machine {} --hosts 1..64{}\n", flags.out, flags.model,
      flags.out, machine.link ? "" : " --link 10Gbit,50us");
}

void print_fit(int hosts, const std::vector<plan::AllReduceTimes>& times,
               const plan::FittedLink& link) {
  say("{:>12}{:>16}{:>16}\n", "bytes", "all-reduce ms", "by the link ms");
  for (const plan::AllReduceTimes& one : times)
    say("{:>12.0f}{:>16.4g}{:>16.4g}\n", one.bytes, 1e3 * median(one.seconds),
        1e3 * plan::engine_seconds(hosts, one.bytes, link.flow));
}

/// Of worker 0, which alone has a model, its machine with the link; the others take part in that.
void measure_between(const MeasureFlags& flags, HostsOfJob& job, MeasuredModel* model) {
  job.workers.barrier(kProgramLimit);  // worker 0 may have to index its data
  if (model) say_to(stderr, "link between {} hosts\n", job.hosts);
  std::vector<plan::AllReduceTimes> times;
  if (job.one_a_host) times = time_all_reduces(*job.one_a_host, flags.link_seconds);
  if (model) {
    const plan::FittedLink link = plan::fit_link(job.hosts, times, flags.most_spread);
    print_fit(job.hosts, times, link);
    plan::Machine machine = machine_of(flags, *model);
    plan::set_link(machine, link.flow, job.hosts);
    write(machine, flags);
  }
  const Millis steps(static_cast<int64_t>(1e3 * flags.seconds));
  job.workers.barrier(steps + kProgramLimit * static_cast<int64_t>(1 + flags.batches.size()));
}

void plan_measure(MeasureFlags& flags) {
  flags.data_flags.as_text = flags.model == kGpt;
  check_gpt_flags(flags.model, flags.gpt);
  const auto spec = job_of_this_process();
  const bool alone = !spec || spec->num_workers == 1;
  const auto model = alone || spec->worker == 0 ? open(flags) : nullptr;
  if (alone) return write(machine_of(flags, *model), flags);
  HostsOfJob job = join_hosts(spec->worker);
  try {
    measure_between(flags, job, model.get());
  } catch (const std::exception& error) {
    job.workers.abort(error.what());
    if (job.one_a_host) job.one_a_host->abort(error.what());
    throw;
  }
}

}  // namespace

void add_plan_measure(Command& plan) {
  const auto flags = std::make_shared<MeasureFlags>();
  flags->name = host_facts().cpu_model.empty() ? "here" : host_facts().cpu_model;
  Command& command =
      plan.command("measure",
                   "Measure a model's steps, the engines here, and the link between the hosts of "
                   "a job");
  command.add("model", "MODEL", &flags->model, "As of tutti train --model").required = true;
  command.add("--data", "PATH", &flags->data, "As of tutti train").required = true;
  command.add("--out", "FILE", &flags->out, "Gets the machine file").required = true;
  command.add("--name", "TEXT", &flags->name, "Of the machine, in the file");
  Argument& batches = command.add("--batches", "INT", &flags->batches,
                                  in_range(1, int64_t{1} << 20), "Samples of a replica");
  batches.several = Several::words_or_commas;
  batches.preset = fmt::format("{}", fmt::join(flags->batches, " "));
  command.add("--seconds", "FLOAT", &flags->seconds, number_between(0.1, 86400),
              "For the steps of all batches");
  command.add("--link-seconds", "FLOAT", &flags->link_seconds, number_between(0.1, 86400),
              "In a job of several hosts (tutti run --nodes): for all-reduces between them");
  command.add("--most-spread", "FLOAT", &flags->most_spread, number_between(0.001, 1000),
              "Of the middle half of a batch's steps (and of all-reduces between hosts), over "
              "their median; more is an error");
  command.add("--threads", "INT", &flags->threads, in_range(1, 4096), "Of LibTorch");
  add_data_flags(command, flags->data_flags);
  add_text_flags(command, flags->data_flags);
  add_gpt_flags(command, flags->gpt);
  add_optimizer_flags(command, flags->optimizer);
  command.footer =
      "Examples:\n"
      "  tutti plan measure doodle_cnn --data examples/data/quickdraw --out here.json\n"
      "  tutti run --nodes 2 --node-rank 0 --rendezvous h0:29500 tutti plan measure doodle_cnn "
      "--data examples/data/quickdraw --out here.json";
  command.action = [flags] {
    plan_measure(*flags);
    return 0;
  };
}

}  // namespace tutti::cli
