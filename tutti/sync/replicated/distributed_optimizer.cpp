#include "tutti/sync/replicated/distributed_optimizer.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <unordered_set>

#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/net/host_meeting.h"
#include "tutti/sync/replicated/detail/distributed_state.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

// Collective. Processes that may use the same cores take a share each, where nobody has said
// another number; LibTorch's default is all of them, in each.
void share_cores(Group& group, Millis limit) {
  const HostFacts& facts = host_facts();
  // A limit of the cgroup is that of its container, which numbers its processes itself.
  const uint64_t container = facts.cpu_quota ? facts.pid_namespace : 0;
  const auto number_of = [](const std::string& words) {
    return static_cast<int64_t>(std::hash<std::string>()(words));
  };
  std::array own{
      number_of(fmt::format("{} {} {}", boot_id(), container, fmt::join(facts.cores, ","))),
      number_of(fmt::format("{} {}", facts.pid_namespace, getpid()))};
  std::vector<int64_t> all(own.size() * static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(own)), span_of(std::span(all)), limit).wait(limit);
  std::unordered_set<int64_t> processes;
  for (size_t rank = 0; rank < all.size(); rank += own.size())
    if (all[rank] == own[0]) processes.insert(all[rank + 1]);
  const int share = std::max(1, facts.usable_cores / static_cast<int>(processes.size()));
  const bool told =
      std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr;
  if (told || processes.size() == 1 || at::get_num_threads() <= share) return;
  log(LogLevel::info,
      "DistributedOptimizer: {} threads for LibTorch instead of {}, since {} processes share {} "
      "cores; OMP_NUM_THREADS says another number",
      share, at::get_num_threads(), processes.size(), facts.usable_cores);
  at::set_num_threads(share);
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(const torch::nn::Module& module,
                                           torch::optim::Optimizer& optimizer, Group group,
                                           const DistributedOptimizerOptions& options)
    : state_(std::make_unique<State>(module, optimizer, group, options)) {
  share_cores(group, options.time_limit);
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;

void DistributedOptimizer::step() {
  State& state = *state_;
  state.require_whole("step()");
  if (!state.synchronized) synchronize();
  if (state.has_begun())
    throw UsageError(
        "DistributedOptimizer: step(): a backward() came since synchronize(), whose gradients are "
        "of this rank alone; other ranks may have made the step, and this one cannot go on. In the "
        "program: synchronize() after the last backward(), and zero_grad() of the "
        "DistributedOptimizer, before the next one, where a step is left out");
  state.synchronized = false;
  state.optimizer.step();
  ++state.steps;
}

at::Tensor DistributedOptimizer::step(const std::function<at::Tensor()>& closure) {
  State& state = *state_;
  state.require_nothing_begun("step(closure)");
  const auto of_all_ranks = [&] {
    state.synchronized = false;
    const at::Tensor loss = closure();
    state.require_open("the end of a closure");
    if (!loss.defined() || loss.numel() != 1)
      throw UsageError(fmt::format(
          "DistributedOptimizer: step(closure): the closure returned {}, expected its loss, one "
          "number",
          loss.defined() ? "a tensor of " + c10::str(loss.sizes()) : "an undefined tensor"));
    const double own = loss.item<double>();
    const detail::Round round = state.exchange({.loss = own});
    state.synchronized = true;
    if (!state.options.average_losses) return loss.detach();
    return at::full({}, round.loss * state.options.prescale * state.options.postscale,
                    loss.options().requires_grad(false));
  };
  const at::Tensor result = state.optimizer.step(of_all_ranks);
  state.synchronized = false;
  ++state.steps;
  return result;
}

void DistributedOptimizer::synchronize() {
  state_->require_whole("step() or synchronize()");
  if (state_->apart)
    throw UsageError(
        "DistributedOptimizer: step() or synchronize() inside of no_sync(), whose gradients are of "
        "this rank alone; let its scope end before");
  if (state_->synchronized)
    throw UsageError(
        "DistributedOptimizer: synchronize() a second time in a step: step() comes after it, or "
        "zero_grad() of the DistributedOptimizer where the step is left out");
  state_->exchange({});
  state_->synchronized = true;
}

void DistributedOptimizer::zero_grad() {
  State& state = *state_;
  state.require_whole("zero_grad()");
  if (state.reducer->has_taken())
    throw UsageError(
        "DistributedOptimizer: zero_grad() after a backward() whose gradients were taken, and may "
        "be on their way to the other ranks: step() comes before it. A step is left out on all "
        "ranks, by synchronize() and zero_grad(); a rank that has nothing for a step calls step() "
        "without a backward()");
  state.reducer->forget_passes();
  state.table_passes.assign(state.tables.size(), 0);
  state.tables_unsent = false;
  state.synchronized = false;
  state.optimizer.zero_grad();
}

void DistributedOptimizer::set_weight(double samples) {
  State& state = *state_;
  if (!std::isfinite(samples) || samples < 0)
    throw UsageError(fmt::format(
        "DistributedOptimizer: set_weight({}), expected a number of samples, 0 or more", samples));
  if (state.options.op != ReduceOp::mean)
    throw UsageError(
        "DistributedOptimizer: set_weight() is of means, and the gradients are summed: multiply "
        "the loss");
  const Compression::Kind kind = state.options.buckets.compression.kind;
  if (kind == Compression::Kind::top_k || kind == Compression::Kind::one_bit ||
      kind == Compression::Kind::power_sgd)
    throw UsageError(fmt::format(
        "DistributedOptimizer: set_weight() beside compression {}, which keeps what it does not "
        "send for the next step: that would count by another step's weight; take bf16 or fp16, or "
        "batches of one size",
        to_string(state.options.buckets.compression)));
  state.require_nothing_begun("set_weight()");
  state.weight = samples;
  state.set_scale();
}

int DistributedOptimizer::join() {
  State& state = *state_;
  state.require_nothing_begun("join()");
  if (state.has_unsent())
    throw UsageError(
        "DistributedOptimizer: join() after passes in no_sync() whose gradients no step has taken: "
        "step() comes before it, or zero_grad()");
  detail::RankSays says{.ends = true};
  detail::Round round = state.exchange(says);
  says.waited = !round.all_end;
  while (!round.all_end) round = state.exchange(says);
  if (says.waited) state.optimizer.zero_grad();
  if (round.fell_behind) state.take_from(round.first);
  state.steps = 0;
  return round.first;
}

DistributedOptimizer::NoSync::NoSync(State& state) : state_(state) {
  if (state.apart) throw UsageError("DistributedOptimizer: no_sync() inside of no_sync()");
  if (state.options.backward_passes_per_step > 1)
    throw UsageError(fmt::format(
        "DistributedOptimizer: no_sync() beside backward_passes_per_step = {}, which says which "
        "backward() sends",
        state.options.backward_passes_per_step));
  state.require_open("no_sync()");
  if (state.has_begun())
    throw UsageError(
        "DistributedOptimizer: no_sync() after a backward() whose gradients were sent; passes that "
        "send nothing come before it in a step");
  state.apart = true;
  state.reducer->listen(false);
}

DistributedOptimizer::NoSync::~NoSync() {
  state_.apart = false;
  state_.reducer->listen(true);
}

DistributedOptimizer::NoSync DistributedOptimizer::no_sync() { return NoSync(*state_); }

torch::optim::Optimizer& DistributedOptimizer::optimizer() const noexcept {
  return state_->optimizer;
}

NamedTensors DistributedOptimizer::held_back() const {
  state_->require_whole("held_back()");
  if (!state_->options.buckets.compression.on()) return {};
  return detail::tensors_of(state_->reducer->sums().state(), state_->layout);
}

void DistributedOptimizer::restore_held_back(const NamedTensors& tensors) {
  state_->require_whole("restore_held_back()");
  const Compression& compression = state_->options.buckets.compression;
  if (!compression.on() && tensors.empty()) return;
  state_->reducer->sums().restore(detail::bucket_state_of(tensors, state_->layout, compression));
}

}  // namespace tutti
