#include "tutti/strategy/strategy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "tutti/base/check.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/random.h"
#include "tutti/base/suggest.h"
#include "tutti/cluster/join.h"
#include "tutti/comm/host_view.h"
#include "tutti/comm/reduce_kernels.h"
#include "tutti/observe/trace.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/replica_threads.h"
#include "tutti/strategy/worlds.h"
#include "tutti/sync/gradients.h"
#include "tutti/sync/tensors.h"

namespace tutti {

struct ReplicaContext::State {
  int rank = 0;
  int local_rank = 0;
  int size = 1;
  bool in_turn = true;
  Group group;
  at::Generator generator;
  std::vector<at::Device> devices{at::Device(at::kCPU)};
};

int ReplicaContext::rank() const noexcept { return state_->rank; }
int ReplicaContext::local_rank() const noexcept { return state_->local_rank; }
int ReplicaContext::num_replicas_in_sync() const noexcept { return state_->size; }
at::Generator& ReplicaContext::generator() { return state_->generator; }
const std::vector<at::Device>& ReplicaContext::devices() const noexcept { return state_->devices; }
Group ReplicaContext::model_group() const { return Group(); }

Group& ReplicaContext::group() {
  if (state_->in_turn && state_->size > 1)
    throw UsageError(
        fmt::format("replica {} of {} has no group: under one_device the replicas take "
                    "turns on one thread and cannot wait for each other",
                    state_->rank, state_->size));
  return state_->group;
}

struct StrategyState {
  StrategyOptions options;
  World world;
  std::vector<ReplicaContext> contexts;
  std::unique_ptr<detail::ReplicaThreads> threads;
  std::vector<std::weak_ptr<WorldMember>> followers;
  Strategy::NextBatch next_batch;
  Strategy::Meet meet;
  int num_datasets = 0;
  std::exception_ptr failure;  // the first of this world's; its group is of no use after it
  std::shared_ptr<void> trace;

  void enter(World next);
  std::map<int, std::vector<std::byte>> meet_others(std::span<const std::byte> value);
  void add(DType dtype, ReduceOp op, std::span<const void* const> own, void* out, int64_t count);
  void run_in_turn(const std::function<void(ReplicaContext&, int)>& body);
  void run_at_once(const std::function<void(ReplicaContext&, int)>& body);
};

namespace {

// Reductions and compressions are chosen by name; "fused" means that none was.
void resolve_reduction(StrategyOptions& options) {
  check_compression(options.compression);
  if (options.make_reduction) {
    const auto own = options.make_reduction();
    if (!own) throw UsageError("make_reduction returned null");
    if (options.reduction != "fused" && options.reduction != own->name())
      throw UsageError(
          fmt::format("reduction \"{}\" and a make_reduction that makes \"{}\": give one",
                      options.reduction, own->name()));
    options.reduction = own->name();
  } else if (options.reduction == "fused") {
    if (options.compression.on()) options.reduction = "all_reduce";
  } else {
    std::vector<std::string> known = cross_device_names();
    known.insert(known.begin(), "fused");
    if (std::find(known.begin(), known.end(), options.reduction) == known.end())
      throw UsageError(unknown_message("reduction", options.reduction, known));
  }
  check_replicated(detail::replicated_options(options));
}

// 2.5 KB, compared around run(): a generator that has moved was drawn from.
at::mt19937_data_pod default_generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  return at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
}

bool same_state(const at::mt19937_data_pod& a, const at::mt19937_data_pod& b) {
  return a.left_ == b.left_ && a.next_ == b.next_ && a.state_ == b.state_;
}

// Keeps the first error of several threads.
class FirstError {
 public:
  bool take(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_) return false;
    error_ = std::move(error);
    return true;
  }
  const std::exception_ptr& error() const { return error_; }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

std::string words_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return plain_words(known.what());
  } catch (...) {
    return "an error that is no std::exception";
  }
}

}  // namespace

void StrategyState::enter(World next) {
  threads.reset();  // before the groups that they used
  world = std::move(next);
  failure = nullptr;
  contexts.clear();
  for (int local = 0; local < world.local; ++local) {
    auto state = std::make_shared<ReplicaContext::State>();
    state->rank = world.first_rank + local;
    state->local_rank = local;
    state->size = world.size;
    state->in_turn = world.in_turn();
    if (!world.in_turn()) state->group = world.groups[local];
    state->generator = at::make_generator<at::CPUGeneratorImpl>(
        random_key(options.seed, RandomPurpose::init, {static_cast<uint64_t>(state->rank)}));
    contexts.emplace_back();
    contexts.back().state_ = std::move(state);
  }
  const bool pinned =
      !world.in_turn() && detail::can_pin(options, world.here, options.threads_per_replica);
  threads = std::make_unique<detail::ReplicaThreads>(
      detail::choose_places(world.in_turn() ? 1 : world.local, world.first_rank_here,
                            options.threads_per_replica, pinned, host_facts().cores),
      options.time_limit);
  if (!world.in_turn() && world.first_rank_here == 0 && world.here > host_facts().usable_cores)
    log_once("more replicas than cores", LogLevel::warning,
             "{} replicas share {} usable cores: this works, but will be slow", world.here,
             host_facts().usable_cores);
}

void StrategyState::run_in_turn(const std::function<void(ReplicaContext&, int)>& body) {
  FirstError first;
  threads->run([&](int) {
    try {
      for (int local = 0; local < world.local; ++local) body(contexts[local], local);
      return true;
    } catch (...) {
      first.take(std::current_exception());
      return false;
    }
  });
  if (first.error()) std::rethrow_exception(first.error());
}

void StrategyState::run_at_once(const std::function<void(ReplicaContext&, int)>& body) {
  if (failure) std::rethrow_exception(failure);
  FirstError first;
  const bool watch = world.local > 1;
  at::mt19937_data_pod before;
  if (watch) before = default_generator_state();
  threads->run([&](int local) {
    try {
      body(contexts[local], local);
      return true;
    } catch (...) {
      const auto error = std::current_exception();
      if (first.take(error))
        world.groups[local].abort(
            fmt::format("replica {} failed: {}", world.first_rank + local, words_of(error)));
      return false;
    }
  });
  failure = first.error();
  if (failure) std::rethrow_exception(failure);
  if (watch && !same_state(before, default_generator_state()))
    throw UsageError(fmt::format(
        "a function that runs on {} thread replicas drew from LibTorch's default generator, which "
        "they share: the numbers would depend on timing\n  use ReplicaContext::generator(), or "
        "tutti::nn::Dropout instead of torch::nn::Dropout",
        world.local));
}

ReplicatedOptions detail::replicated_options(const StrategyOptions& options) {
  ReplicatedOptions chosen{.compression = options.compression, .reduction = options.make_reduction};
  if (!chosen.reduction && options.reduction != "fused" && options.reduction != "all_reduce")
    chosen.reduction = cross_device_by_name(options.reduction);
  return chosen;
}

Strategy::Strategy(const StrategyOptions& options) : state_(std::make_shared<StrategyState>()) {
  const auto job = options.kind == "parameter_server" ? job_of_this_process() : std::nullopt;
  check_options(options, job ? job->num_workers : 1);
  detail::keep_freed_memory();
  state_->options = options;
  resolve_reduction(state_->options);
  World world = detail::make_world(state_->options);
  state_->trace = trace_by_environment([] {
    const auto own = job_of_this_process();
    return own ? own->worker : 0;
  });
  state_->enter(std::move(world));
  log(LogLevel::info, "strategy {}: {} replicas ({} here), reduction shape {}, {} threads each",
      options.kind, state_->world.size, state_->world.local, state_->options.reduction_shape,
      state_->options.threads_per_replica);
}

std::string_view Strategy::kind() const noexcept { return state_->options.kind; }
const StrategyOptions& Strategy::options() const noexcept { return state_->options; }
const World& Strategy::world() const noexcept { return state_->world; }

void Strategy::take_batches_from(NextBatch next) { state_->next_batch = std::move(next); }

const Strategy::NextBatch& Strategy::next_batch() const noexcept { return state_->next_batch; }

void Strategy::meet_by(Meet meet) { state_->meet = std::move(meet); }

bool Strategy::can_meet() const noexcept { return state_->meet != nullptr; }

std::map<int, std::vector<std::byte>> Strategy::meet(std::span<const std::byte> value) {
  return state_->meet_others(value);
}

std::map<int, std::vector<std::byte>> StrategyState::meet_others(std::span<const std::byte> value) {
  if (!meet)
    throw UsageError(
        "workers that may be lost meet at the servers, to which the optimizer connects: make it "
        "(or compile()) first");
  return meet(value);
}

World Strategy::those_here() {
  World here = world();
  if (!here.apart || !can_meet()) return here;
  const auto workers = meet({});
  const auto own = workers.find(worker());
  const auto before = static_cast<int>(std::distance(workers.begin(), own));
  here.size = static_cast<int>(workers.size()) * here.local;
  here.first_rank = before * here.local;
  here.chief = before == 0;
  if (here.size == world().size) return here;
  here.shape = ReductionShape::flat(here.size);
  if (here.shares.empty()) return here;
  here.shares.clear();
  for (const auto& [number, value] : workers)
    for (int local = 0; local < here.local; ++local)
      here.shares.push_back(world().shares[number * here.local + local]);
  return here;
}

void Strategy::by_chief(const std::function<void()>& fn) {
  if (!world().apart || !can_meet()) {
    if (world().chief) fn();
    return;
  }
  for (bool done = false; !done;) {
    const int chief = meet({}).begin()->first;
    if (chief == worker()) fn();
    done = meet({}).contains(chief);
  }
}

void Strategy::run_all(const std::function<void(ReplicaContext&, int)>& body) {
  const auto for_followers = [&](const auto& fn) {
    for (const auto& follower : state_->followers)
      if (const auto member = follower.lock()) fn(*member);
  };
  const auto prepared = [&](ReplicaContext& replica, int local) {
    try {
      for_followers([&](WorldMember& member) { member.prepare(local); });
      body(replica, local);
      for_followers([&](WorldMember& member) { member.complete(local); });
    } catch (...) {
      for_followers([](WorldMember& member) { member.rethrow_failure(); });
      throw;
    }
  };
  if (world().in_turn()) {
    state_->run_in_turn(prepared);
  } else {
    state_->run_at_once(prepared);
  }
}

void Strategy::follow(std::weak_ptr<WorldMember> member) {
  std::erase_if(state_->followers, [](const auto& follower) { return follower.expired(); });
  state_->followers.push_back(std::move(member));
}

void Strategy::resize(int replicas, std::vector<double> shares) {
  if (state_->options.kind == "multi_worker")
    throw UsageError("a multi_worker job cannot be resized while it runs");
  const int most = most_replicas(state_->options.kind);
  if (replicas < 1 || replicas > most)
    throw UsageError(fmt::format("resize to {} replicas; expected 1 to {}", replicas, most));
  StrategyOptions options = state_->options;
  options.replicas = replicas;
  options.reduction_shape.clear();
  options.shares = std::move(shares);
  World next = detail::make_world(options);
  next.generation = world().generation + 1;
  state_->options = options;
  state_->enter(std::move(next));
  for (const auto& follower : state_->followers)
    if (const auto member = follower.lock()) member->rebind(world());
}

// Values of all replicas from those of the local ones, without a collective: each worker adds what
// all have brought, in the one order, unless somebody is lost.
void StrategyState::add(DType dtype, ReduceOp op, std::span<const void* const> own, void* out,
                        int64_t count) {
  if (world.one_process()) return reduce_inputs(dtype, op, world.shape, own, out, count);
  const int64_t bytes = count * size_of(dtype);
  std::vector<std::byte> mine;
  for (const void* const values : own) {
    const auto* const begin = static_cast<const std::byte*>(values);
    mine.insert(mine.end(), begin, begin + bytes);
  }
  const auto all = meet_others(mine);
  std::vector<const void*> inputs;
  for (const auto& [worker, values] : all) {
    if (values.size() != mine.size())
      throw Mismatch(fmt::format("reduce: worker {} has {} bytes, this worker {}", worker,
                                 values.size(), mine.size()));
    for (int local = 0; local < world.local; ++local)
      inputs.push_back(values.data() + local * bytes);
  }
  const auto there = static_cast<int>(inputs.size());
  const auto shape = there == world.size ? world.shape : ReductionShape::flat(there);
  reduce_inputs(dtype, op, shape, inputs, out, count);
}

// Values of all replicas of the world in the one order. One process adds them itself; several let
// each local member take part in the collective.
void Strategy::reduce_doubles(ReduceOp op, std::span<double> values) {
  const World& now = world();
  const int64_t count = static_cast<int64_t>(values.size()) / now.local;
  const auto part = [&](int local) { return values.subspan(local * count, count); };
  if (now.one_process() || now.apart) {
    std::vector<const void*> inputs;
    for (int local = 0; local < now.local; ++local) inputs.push_back(part(local).data());
    return state_->add(DType::float64, op, inputs, values.data(), count);
  }
  run_all([&](ReplicaContext& replica, int local) {
    replica.group().all_reduce_now(span_of(part(local)), op, now.time_limit);
  });
}

double Strategy::reduce(ReduceOp op, const PerReplica<double>& values) {
  std::vector<double> flat = values.values();
  reduce_doubles(op, flat);
  return flat[0];
}

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values) {
  const World& now = world();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& value : values.values()) {
    if (!value.defined() || value.sizes() != values.local(0).sizes())
      throw UsageError("reduce: all replicas must return tensors of one shape");
    copies.push_back(value.detach().contiguous().clone());
  }
  if (now.one_process() || now.apart) {
    std::vector<const void*> inputs;
    for (const auto& copy : copies) inputs.push_back(copy.data_ptr());
    state_->add(dtype_of(copies[0].scalar_type()), op, inputs, copies[0].data_ptr(),
                copies[0].numel());
    return copies[0];
  }
  run_all([&](ReplicaContext& replica, int local) {
    replica.group().all_reduce(span_of(copies[local]), op, now.time_limit).wait(now.time_limit);
  });
  return copies[0];
}

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values, int64_t axis) {
  std::vector<at::Tensor> sums;
  std::vector<double> counts;
  for (const at::Tensor& value : values.values()) {
    sums.push_back(value.detach().sum(axis));
    counts.push_back(static_cast<double>(value.size(axis)));
  }
  at::Tensor sum = reduce(ReduceOp::sum, PerReplica<at::Tensor>(sums, values.first_rank()));
  if (op == ReduceOp::sum) return sum;
  if (op != ReduceOp::mean) throw UsageError("reduce over an axis: expected sum or mean");
  reduce_doubles(ReduceOp::sum, counts);
  return counts[0] == 0 ? at::zeros_like(sum) : sum / counts[0];
}

DistributedDataset Strategy::distribute(const data::Dataset& dataset) {
  return DistributedDataset(*this, dataset, ++state_->num_datasets);
}

Strategy strategy_from_flags(int& argc, char** argv) {
  try {
    return Strategy(take_strategy_flags(argc, argv));
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    std::exit(2);
  }
}

at::Tensor average_loss(const at::Tensor& per_sample, int64_t global_batch_size) {
  if (global_batch_size < 1)
    throw UsageError(fmt::format("average_loss: the global batch is {} samples; expected 1 or more",
                                 global_batch_size));
  return per_sample.sum() / static_cast<double>(global_batch_size);
}

}  // namespace tutti
