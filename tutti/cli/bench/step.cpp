#include "tutti/cli/bench/step.h"

#include <fmt/format.h>
#include <sched.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/json.h"
#include "tutti/base/resident.h"
#include "tutti/cli/bench/tensor_memory.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cluster/join/join.h"
#include "tutti/data/quickdraw.h"
#include "tutti/nn/graph_module.h"
#include "tutti/nn/sample_context.h"
#include "tutti/optim/rule.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/losses/losses.h"

namespace tutti::cli {
namespace {

using Pair = std::pair<at::Tensor, at::Tensor>;

// More batches than this are not kept by --preload: they would only push each other out of the
// cache that both we and the peers have.
constexpr size_t kPreloaded = 32;

// What the first replica writes down, one entry a timed step.
struct Times {
  std::vector<double> step, data, compute, sync;

  MedianStep median() const {
    std::vector<size_t> order(step.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return step[i]; });
    if (order.empty()) return {};
    const size_t i = order[(order.size() - 1) / 2];
    return {.step_ms = step[i], .data_ms = data[i], .compute_ms = compute[i], .sync_ms = sync[i]};
  }
};

// Global batches in order, epoch after epoch. One replica's own: no thread waits for another's
// order.
class Batches {
 public:
  Batches(Strategy strategy, const data::Dataset& train)
      : data_(strategy.distribute(train)), per_epoch_(train.num_batches()) {}

  DistributedBatch at(int64_t step) {
    const int64_t epoch = step / per_epoch_;
    if (epoch != epoch_) {
      range_.emplace(data_.epoch(epoch));
      epoch_ = epoch;
    }
    return *DistributedDataset::Batches::iterator(&*range_, step % per_epoch_);
  }

 private:
  DistributedDataset data_;
  int64_t per_epoch_;
  int64_t epoch_ = -1;
  std::optional<DistributedDataset::Batches> range_;
};

class StepMeasurement {
 public:
  StepMeasurement(const StepFlags& flags, Strategy strategy, const nn::Graph& graph,
                  const data::Dataset& train)
      : flags_(flags),
        strategy_(std::move(strategy)),
        train_(train.shuffle().batch(flags.job.global_batch)),
        net_(strategy_,
             [&] {
               auto module = nn::make_module(graph);
               module->set_planned(!flags.by_autograd);
               return module;
             }),
        optimizer_(make_optimizer()),
        batches_(strategy_.world().local, Batches(strategy_, train_)),
        losses_(strategy_.world().local) {}

  StepFigures run(TensorMemory* memory) {
    forget_peak_resident();
    if (flags_.preload) preload();
    steps(0, flags_.warmup, false);
    times_ = {};
    const auto begin = Clock::now();
    steps(flags_.warmup, flags_.warmup + flags_.steps, true);
    StepFigures all = figures(ms_between(begin, Clock::now()) / 1000);
    all.memory = {.resident = peak_resident_bytes() - resident_before_ - all.gradient_bytes,
                  .planned = memory_of_step(true, memory),
                  .by_autograd = memory_of_step(false, memory)};
    return all;
  }

 private:
  Optimizer make_optimizer() const {
    const auto recipe = recipe_from(flags_.job.optimizer);
    if (flags_.unfused) return Optimizer(net_, recipe, ReplicatedOptions{});
    return Optimizer(net_, recipe);
  }

  int64_t size_of(int64_t step) const {
    return flags_.preload ? flags_.job.global_batch
                          : std::min(flags_.job.global_batch,
                                     train_.num_samples() -
                                         step % train_.num_batches() * flags_.job.global_batch);
  }

  void preload() {
    const int64_t whole = std::max<int64_t>(1, train_.num_samples() / flags_.job.global_batch);
    const auto count = std::min<int64_t>(whole, kPreloaded);
    preloaded_ = strategy_
                     .run([&](ReplicaContext& replica) {
                       std::vector<Pair> mine;
                       for (int64_t i = 0; i < count; ++i)
                         mine.push_back(batches_[replica.local_rank()].at(i).local(replica));
                       return mine;
                     })
                     .values();
  }

  // One step of one replica; `note` where its times go, or null.
  void step(ReplicaContext& replica, int64_t number, Times* note) {
    const int local = replica.local_rank();
    const auto begin = Clock::now();
    std::optional<DistributedBatch> batch;
    if (!flags_.preload) batch.emplace(batches_[local].at(number));
    const auto [x, y] =
        batch ? batch->local(replica) : preloaded_[local][number % preloaded_[local].size()];
    const nn::SampleContext here({.seed = flags_.job.seed,
                                  .step = number,
                                  .first_row = batch ? batch->first_row(replica) : 0});
    const auto read = Clock::now();
    optimizer_.prepare(replica);
    auto computed = read;
    const auto global = static_cast<double>(batch ? batch->global_size() : flags_.job.global_batch);
    double sum = 0;
    const auto loss =
        loss_.kernel().scaled_sum(net_.local(replica)->forward(x), y, 1 / global, sum);
    if (note)  // the clock is read when autograd has finished, inside minimize()
      loss.register_hook([&computed](const at::Tensor&) {
        torch::autograd::Engine::get_default_engine().queue_callback(
            [&computed] { computed = Clock::now(); });
      });
    optimizer_.minimize(replica, loss);
    losses_[local] = sum / global;
    if (!note) return;
    const auto end = Clock::now();
    note->data.push_back(ms_between(begin, read));
    note->compute.push_back(ms_between(read, computed));
    note->sync.push_back(ms_between(computed, end));
    note->step.push_back(ms_between(begin, end));
  }

  void steps(int64_t from, int64_t to, bool timed) {
    const auto loop = [&](ReplicaContext& replica, int64_t first, int64_t last) {
      Times* note = timed && replica.local_rank() == 0 ? &times_ : nullptr;
      for (int64_t number = first; number < last; ++number) step(replica, number, note);
    };
    if (!strategy_.world().in_turn() || strategy_.world().size == 1)
      return strategy_.run([&](ReplicaContext& replica) { loop(replica, from, to); });
    for (int64_t number = from; number < to;
         ++number) {  // replicas that take turns end a step together
      const auto begin = Clock::now();
      strategy_.run([&](ReplicaContext& replica) { loop(replica, number, number + 1); });
      if (timed) times_.step.back() = ms_between(begin, Clock::now());
    }
  }

  // The second of two steps: what a first one makes, and keeps, is not of each.
  int64_t memory_of_step(bool planned, TensorMemory* memory) {
    if (memory == nullptr) return 0;
    strategy_.run([&](ReplicaContext& replica) { net_.local(replica)->set_planned(planned); });
    steps(next_, next_ + 1, false);
    memory->begin();
    steps(next_ + 1, next_ + 2, false);
    next_ += 2;
    return memory->end();
  }

  StepFigures figures(double seconds) {
    const auto mean = [](const std::vector<double>& values) {
      double sum = 0;
      for (double value : values) sum += value;
      return values.empty() ? 0 : sum / static_cast<double>(values.size());
    };
    int64_t images = 0;
    for (int64_t i = 0; i < flags_.steps; ++i) images += size_of(flags_.warmup + i);
    StepFigures figures;
    figures.images_per_second = static_cast<double>(images) / seconds;
    figures.step_ms_p50 = quantile(times_.step, 0.5);
    figures.step_ms_p99 = quantile(times_.step, 0.99);
    figures.compute_ms = mean(times_.compute);
    figures.sync_ms = mean(times_.sync);
    figures.data_ms = mean(times_.data);
    figures.median = times_.median();
    figures.wire_bytes_per_step = optimizer_.wire_bytes_per_step();
    for (const at::Tensor& parameter : optimizer_.updater().parameters(0))
      if (parameter.requires_grad())
        figures.gradient_bytes += static_cast<int64_t>(parameter.nbytes());
    figures.loss =
        strategy_.reduce(ReduceOp::sum, PerReplica<double>(losses_, strategy_.world().first_rank));
    return figures;
  }

  StepFlags flags_;
  int64_t next_ = flags_.warmup + flags_.steps;  // that is counted, not timed
  int64_t resident_before_ = resident_bytes();
  Strategy strategy_;
  data::Dataset train_;
  Replicated<nn::GraphModule> net_;
  Optimizer optimizer_;
  Loss loss_ = losses::sparse_categorical_crossentropy();
  // By local replica.
  std::vector<Batches> batches_;
  std::vector<std::vector<Pair>> preloaded_;
  std::vector<double> losses_;  // this part of the last step's loss
  Times times_;
};

// Cores of its own for a worker that trains by itself.
void pin_to_own_cores(int worker, int num_workers, int threads) {
  const auto& cores = host_facts().cores;
  if (int64_t{num_workers} * threads > static_cast<int64_t>(cores.size())) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < threads; ++i) CPU_SET(cores[worker * threads + i], &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    throw Error(fmt::format("worker {}: cannot be pinned: {}", worker, errno_words(errno)));
}

// Never to talk to the others.
StrategyOptions alone(const StepFlags& flags, StrategyOptions options, int worker, int workers) {
  const int threads = flags.job.threads ? static_cast<int>(*flags.job.threads)
                                        : std::max(1, host_facts().usable_cores / workers);
  pin_to_own_cores(worker, workers, threads);
  options.kind = "one_device";
  options.alone = true;
  options.typed.clear();  // of strategy independent
  options.replicas = 1;
  options.threads_per_replica = threads;
  return options;
}

bool in_step(const StepFlags& flags, const StrategyOptions& options) {
  if (flags.job.uses_servers()) return options.served.staleness.synchronous();
  return flags.job.strategy != "independent";
}

// One worker among several that begin together and add up at the end; each step is its own.
StepFigures measure_out_of_step(const StepFlags& flags, const StrategyOptions& options,
                                const nn::Graph& graph, const data::Dataset& train,
                                TensorMemory& memory) {
  Group all = join(options.time_limit);
  const int workers = all.size();
  StepFlags mine = flags;
  mine.job.global_batch = flags.job.global_batch / workers;
  const bool served = flags.job.uses_servers();
  Strategy strategy(served ? options : alone(flags, options, all.rank(), workers));
  all.barrier(options.time_limit);
  StepFigures figures = measure_steps(mine, strategy, graph, train, &memory);
  double totals[] = {figures.images_per_second, figures.loss / workers};
  all.all_reduce_now(span_of(std::span<double>(totals)), ReduceOp::sum, options.time_limit);
  figures.images_per_second = totals[0];
  figures.loss = totals[1];
  return figures;
}

// A step over hosts, and what of it is hidden can be said: whole replicas add up the gradients as
// they are, and every replica's part is the same.
bool has_over_hosts(const StepFlags& flags, const World& world) {
  return flags.job.strategy == "multi_worker" && flags.job.mesh.empty() &&
         world.shape.replicas_per_host().size() > 1 && world.processes() > 1 &&
         flags.job.compression == "none" && world.shares.empty();
}

// The gradients' sum over all replicas, while nobody computes.
double sums_ms(const World& world, int64_t bytes) {
  constexpr int kWarmUp = 2, kTimes = 10;
  std::vector<double> times;
  detail::for_each_local(world, [&](int local) {
    Group group = world.groups[static_cast<size_t>(local)];
    const Array sums = Array::zeros(DType::float32, {bytes / static_cast<int64_t>(sizeof(float))});
    for (int i = 0; i < kWarmUp + kTimes; ++i) {
      group.barrier(world.time_limit);
      const auto begin = Clock::now();
      group.all_reduce_now({sums.data(), sums.num_elements(), DType::float32}, ReduceOp::sum,
                           world.time_limit);
      if (local == 0 && i >= kWarmUp) times.push_back(ms_between(begin, Clock::now()));
    }
  });
  return median(times);
}

// The same steps of each worker's replicas by themselves, of the slowest: all at once, since they
// may share memory and cores.
double t1_ms(const StepFlags& flags, StrategyOptions options, const World& world,
             const nn::Graph& graph, const data::Dataset& train) {
  StepFlags mine = flags;
  mine.job.global_batch = flags.job.global_batch / world.size * world.local;
  options.kind = world.local == 1 ? "one_device" : "mirrored";
  options.alone = true;
  options.typed.clear();  // of a strategy of several workers
  options.reduction_shape.clear();
  options.table = StrategyOptions().table;
  options.pin = false;  // they stay where the step's own replicas are
  options.replicas = world.local;
  const Strategy strategy(options);
  detail::for_each_local(world, [&](int local) {
    Group group = world.groups[static_cast<size_t>(local)];
    group.barrier(world.time_limit);
  });
  const double own = measure_steps(mine, strategy, graph, train, nullptr).step_ms_p50;
  double slowest = own;
  detail::for_each_local(world, [&](int local) {
    Group group = world.groups[static_cast<size_t>(local)];
    double all = own;
    group.all_reduce_now({&all, 1, DType::float64}, ReduceOp::max, world.time_limit);
    if (local == 0) slowest = all;
  });
  return slowest;
}

// Collective over workers.
OverHosts over_hosts(const StepFlags& flags, const StrategyOptions& options, const World& world,
                     const StepFigures& figures, const nn::Graph& graph,
                     const data::Dataset& train) {
  OverHosts found{.hosts = static_cast<int>(world.shape.replicas_per_host().size())};
  found.t1_ms = t1_ms(flags, options, world, graph, train);
  found.t2_ms = sums_ms(world, figures.gradient_bytes);
  found.max_ms = std::max(found.t1_ms, found.t2_ms);
  found.exposed_ms = std::max(0.0, figures.step_ms_p50 - found.t1_ms);
  return found;
}

OrderedJson json_of(const StepFlags& flags, int replicas, const StepFigures& figures) {
  OrderedJson json = {{"bench", "step"},
                      {"model", flags.job.model},
                      {"strategy", flags.job.strategy},
                      {"replicas", replicas},
                      {"global_batch", flags.job.global_batch},
                      {"images_per_second", figures.images_per_second},
                      {"step_ms_p50", figures.step_ms_p50},
                      {"step_ms_p99", figures.step_ms_p99},
                      {"compute_ms", figures.compute_ms},
                      {"sync_ms", figures.sync_ms},
                      {"data_ms", figures.data_ms},
                      {"median_step",
                       {{"step_ms", figures.median.step_ms},
                        {"data_ms", figures.median.data_ms},
                        {"compute_ms", figures.median.compute_ms},
                        {"sync_ms", figures.median.sync_ms}}},
                      {"loss", figures.loss},
                      {"compression", flags.job.compression},
                      {"wire_bytes_per_step", figures.wire_bytes_per_step},
                      {"gradient_bytes", figures.gradient_bytes},
                      {"memory",
                       {{"planned_bytes", figures.memory.planned},
                        {"by_autograd_bytes", figures.memory.by_autograd},
                        {"resident_bytes", figures.memory.resident}}}};
  if (const auto& over = figures.over_hosts)
    json.update(OrderedJson{{"hosts", over->hosts},
                            {"t1_ms", over->t1_ms},
                            {"t2_ms", over->t2_ms},
                            {"max_ms", over->max_ms},
                            {"exposed_ms", over->exposed_ms}});
  return json;
}

void report(const StepFlags& flags, int replicas, const StepFigures& figures) {
  fmt::print("{:<8} {:<13} {:>8} {:>6} {:>10} {:>9} {:>9} {:>11} {:>8} {:>8} {:>12}\n", "model",
             "strategy", "replicas", "batch", "images/s", "p50 ms", "p99 ms", "compute ms",
             "sync ms", "data ms", "wire bytes");
  fmt::print(
      "{:<8} {:<13} {:>8} {:>6} {:>10.0f} {:>9.3f} {:>9.3f} {:>11.3f} {:>8.3f} {:>8.3f} {:>12}\n",
      flags.job.model, flags.job.strategy, replicas, flags.job.global_batch,
      figures.images_per_second, figures.step_ms_p50, figures.step_ms_p99, figures.compute_ms,
      figures.sync_ms, figures.data_ms, figures.wire_bytes_per_step);
  fmt::print("memory of a step: tensors {} as planned, {} by autograd; the process grew by {}\n",
             size_words(figures.memory.planned), size_words(figures.memory.by_autograd),
             size_words(figures.memory.resident));
  if (const auto& over = figures.over_hosts)
    fmt::print(
        "over {} hosts: t1 {:.3f} ms (each by itself, all at once), t2 {:.3f} ms (sums alone); a "
        "step is {:.2f} of max(t1, t2), and {:.3f} ms longer than t1\n",
        over->hosts, over->t1_ms, over->t2_ms, figures.step_ms_p50 / over->max_ms,
        over->exposed_ms);
  const std::string line = json_of(flags, replicas, figures).dump();
  fmt::print("{}\n", line);
  std::fflush(stdout);
  if (!flags.json.empty()) write_file_atomically(flags.json, line + "\n");
}

}  // namespace

StepFigures measure_steps(const StepFlags& flags, Strategy strategy, const nn::Graph& graph,
                          const data::Dataset& train, TensorMemory* memory) {
  return StepMeasurement(flags, std::move(strategy), graph, train).run(memory);
}

int bench_step(const StepFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const StrategyOptions options = strategy_options(flags.job, kTimed);
  if (options.device != "cpu")  // a step is queued there: the host's clock sees none of it
    throw UsageError(fmt::format(
        "bench step --device {}: it times steps on CPUs alone; tools/gpu_check times them on GPUs",
        options.device));
  check_shares(flags.job);
  check_given_shares(flags.job);
  if (flags.unfused && (options.uses_servers() || options.kind == "central_storage"))
    throw UsageError(
        fmt::format("--unfused: strategy {} keeps one storage of the parameters, no replica "
                    "updates its own; expected one_device, mirrored or multi_worker",
                    options.kind));
  const auto train = data::quickdraw(flags.job.data, {.split = "train"});
  check_batch(flags.job, train);
  const nn::Graph graph = model_for(flags.job, train);
  check_placement(flags.job, variables_of(graph));
  check_batch_norm(flags.job, graph, train, flags.drawn_steps());
  if (starts_workers(flags.job))
    return run_as_workers("bench step", flags.job, num_workers_of(flags.job));

  TensorMemory memory;  // before a strategy and its threads
  if (!in_step(flags, options)) {
    const StepFigures figures = measure_out_of_step(flags, options, graph, train, memory);
    const auto worker = job_of_this_process();
    if (worker->worker == 0) report(flags, worker->num_workers, figures);
    return 0;
  }
  Strategy strategy(options);
  StepFigures figures = measure_steps(flags, strategy, graph, train, &memory);
  if (has_over_hosts(flags, strategy.world()))
    figures.over_hosts =
        over_hosts(flags, strategy.options(), strategy.world(), figures, graph, train);
  if (strategy.world().chief) report(flags, strategy.num_replicas_in_sync(), figures);
  return 0;
}

}  // namespace tutti::cli
