#include "tutti/strategy/strategy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <atomic>
#include <mutex>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/base/random.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/suggest.h"
#include "tutti/cluster/join/environment_check.h"
#include "tutti/cluster/join/exit_code.h"
#include "tutti/cluster/join/join.h"
#include "tutti/data/loader/registered.h"
#include "tutti/net/token.h"
#include "tutti/observe/trace.h"
#include "tutti/queues/out_of_memory.h"
#include "tutti/strategy/choice/launched.h"
#include "tutti/strategy/detail/on_host.h"
#include "tutti/strategy/detail/own_random_numbers.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/strategy/strategy_state.h"
#include "tutti/sync/compiled/compiled_updater.h"
#include "tutti/sync/detail/vector_math.h"
#include "tutti/sync/updater.h"

namespace tutti {
namespace {

// Reductions and compressions are chosen by name; "fused" means that none was.
void resolve_reduction(StrategyOptions& options) {
  check_compression(options.compression);
  if (options.make_reduction) {
    const auto own = options.make_reduction();
    if (!own) throw UsageError("make_reduction returned null");
    if (own->name() == "adasum")
      throw UsageError(
          "make_reduction: adasum combines whole buckets, and a Strategy cuts them by size and by "
          "the order in which gradients come: the update would depend on it; take "
          "DistributedOptimizer with .adasum, where each parameter has its own");
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

// Empty where replicas run at once, or there is one.
std::string why_in_turn(const World& world) {
  if (!world.in_turn()) return {};
  if (world.plugin) return "under tpu they are devices that programs run on";
  if (world.size == 1) return {};
  return "under one_device the replicas take turns on one thread and cannot wait for each other";
}

// Empty where every replica takes part in every step.
std::string why_alone(const Membership& members, const StrategyOptions& options) {
  const mesh::Topology& world = members.topology();
  if (world.model_ranks() > 1)
    return fmt::format(
        "on the mesh of {} a replica is {} ranks, of which each meets those on its own axes: use "
        "ReplicaContext::group_of(Axis::data)",
        world.mesh.sentence(), world.model_ranks());
  const ServedOptions& served = options.served;
  if (!options.uses_servers()) return {};
  if (served.staleness.synchronous() && members.all_stay() && served.drop_slowest == 0) return {};
  return fmt::format(
      "under parameter_server with staleness {}{}{} replicas do not meet in every step; use "
      "staleness 0 without these, mirrored or multi_worker",
      served.staleness.text(), served.drop_slowest > 0 ? ", late gradients dropped" : "",
      members.all_stay() ? "" : ", workers that may be lost");
}

}  // namespace

void StrategyState::enter(World next) {
  threads.reset();  // before the groups that they used
  world = std::move(next);
  failure = nullptr;
  contexts.clear();
  brought = std::vector<DeviceMark>(static_cast<size_t>(world.local));
  for (int local = 0; local < world.local; ++local) {
    auto state = std::make_shared<ReplicaContext::State>();
    state->rank = world.first_rank + local;
    state->local_rank = local;
    state->size = world.size;
    state->in_turn = why_in_turn(world);
    state->alone = state->in_turn.empty() ? why_alone(membership, options) : state->in_turn;
    state->time_limit = options.time_limit;
    state->group = world.group_of(local);
    state->mesh = world.mesh;
    if (world.model_ranks() > 1) state->groups = world.mesh_groups[local];
    state->tensor_blocks = world.tensor_blocks;
    if (world.on_devices()) {
      state->queue = world.queues[local];
      state->shares_device =
          std::ranges::count(world.queues, state->queue.device(), &DeviceQueue::device) > 1 &&
          state->queue.on_device();
    }
    state->key = random_key(options.seed, RandomPurpose::init,
                            {static_cast<uint64_t>(world.replica_of(state->rank))});
    state->generator = at::make_generator<at::CPUGeneratorImpl>(state->key);
    contexts.emplace_back();
    contexts.back().state_ = std::move(state);
  }
  const bool pinned = detail::can_pin(options, world.threads_here(), options.threads_per_replica);
  threads = std::make_unique<detail::ReplicaThreads>(
      detail::choose_places(world.threads(), world.first_rank_here, options.threads_per_replica,
                            pinned, host_facts().cores),
      options.time_limit);
  meeting =
      std::make_unique<detail::ReplicaMeeting>(world.first_rank, world.local, options.time_limit);
  if (world.first_rank_here == 0 && world.threads_here() > host_facts().usable_cores)
    log_once("more replicas than cores", LogLevel::warning,
             "{} replicas share {} usable cores: this works, but will be slow", world.here,
             host_facts().usable_cores);
}

void StrategyState::run_in_turn(const std::function<void(ReplicaContext&, int)>& body) {
  FirstError first;
  threads->run([&](int) {
    try {
      for (int local = 0; local < world.local; ++local) body(contexts[local], local);
    } catch (...) {
      first.take(std::current_exception());
    }
  });
  if (first.error()) std::rethrow_exception(first.error());
}

void StrategyState::run_at_once(const std::function<void(ReplicaContext&, int)>& body) {
  if (failure)
    throw Error(fmt::format(
        "strategy {}: ended by an earlier error, after which its replicas may differ: {}",
        options.kind, words_of(failure)));
  FirstError first;
  const bool watch = world.local > 1;
  at::mt19937_data_pod before;
  if (watch) before = default_generator_state();
  std::mutex failing;
  threads->run([&](int local) {
    try {
      body(contexts[local], local);
    } catch (...) {
      const auto error = std::current_exception();
      first.take(error);
      // Each one that fails, the first before the others: on a mesh others wait for it in groups
      // that the first has no part in.
      const std::lock_guard lock(failing);
      const auto words =
          fmt::format("replica {} failed: {}", world.first_rank + local, words_of(error));
      world.abort(local, words);
      for (const auto& follower : followers)
        if (const auto member = follower.lock()) member->fail(local, words);
      meeting->fail(words);
    }
  });
  failure = first.error();
  if (failure) std::rethrow_exception(failure);
  if (watch && !same_state(before, default_generator_state()))
    throw UsageError(fmt::format(
        "a function that runs on {} thread replicas drew from LibTorch's default generator, which "
        "they share: the numbers would depend on timing\n  name no generator (operators then draw "
        "from the replica's own) or ReplicaContext::generator(); code that draws by itself runs "
        "under multi_worker, where each worker has one",
        world.local));
}

ReplicatedOptions detail::replicated_options(const StrategyOptions& options) {
  ReplicatedOptions chosen{.compression = options.compression, .reduction = options.make_reduction};
  if (const int64_t bytes = options.communication.bytes_per_pack; bytes != 0) {
    chosen.bucket_bytes = bytes;
    chosen.first_bucket_bytes = std::min(bytes, chosen.first_bucket_bytes);
  }
  if (!chosen.reduction && options.reduction != "fused" && options.reduction != "all_reduce")
    chosen.reduction = cross_device_by_name(options.reduction);
  return chosen;
}

Strategy::Strategy(const StrategyOptions& options) : state_(std::make_shared<StrategyState>()) {
  data::serve_if_loader();
  make_failed_writes_errors();
  check_environment();
  take_token_out_of_environment();
  state_->options = options;
  resolve_reduction(state_->options);
  choose(state_->options, {}, {}, detail::machine_here(options));
  check_launched(options);
  detail::keep_freed_memory();
  detail::settle_vector_math();
  World world = detail::make_world(state_->options);
  state_->trace = trace_by_environment([] {
    const auto own = job_of_this_process();
    return own ? own->worker : 0;
  });
  state_->enter(std::move(world));
  if (state_->options.shares_move()) state_->moving = std::make_unique<MovingShares>(*state_);
  log(LogLevel::info, "strategy {}: {} replicas ({} here), reduction shape {}, {} threads each",
      options.kind, state_->world.size, state_->world.local, state_->world.shape.to_string(),
      state_->options.threads_per_replica);
  if (!options.mesh.empty())
    log(LogLevel::info, "mesh: {}{}", state_->world.mesh.sentence(),
        state_->world.in_turn() ? ", all on this device" : "");
}

std::string_view Strategy::kind() const noexcept { return state_->options.kind; }
const StrategyOptions& Strategy::options() const noexcept { return state_->options; }
const World& Strategy::world() const noexcept { return state_->world; }
MovingShares* Strategy::moving_shares() const noexcept { return state_->moving.get(); }

void Strategy::take_batches_from(NextBatch next, const void* whose) {
  state_->next_batches.emplace_back(whose, std::move(next));
}

void Strategy::take_no_more_batches_from(const void* whose) {
  std::erase_if(state_->next_batches, [&](const auto& each) { return each.first == whose; });
}

const Strategy::NextBatch& Strategy::next_batch() const noexcept {
  static const NextBatch none;
  return state_->next_batches.empty() ? none : state_->next_batches.back().second;
}

Membership& Strategy::membership() const noexcept { return state_->membership; }

void Strategy::by_chief(const std::function<void()>& fn) { membership().by_chief(fn); }

void Strategy::require_cross_replica(std::string_view method) const {
  if (const ReplicaContext* const replica = ReplicaContext::current())
    throw UsageError(
        fmt::format("{}: called inside run(), on replica {} of {}; call it outside, with what "
                    "run() returns, or "
                    "inside merge()",
                    method, replica->rank(), replica->num_replicas_in_sync()));
}

void Strategy::require_own(const ReplicaContext& replica, std::string_view operation) const {
  const auto local = static_cast<size_t>(replica.local_rank());
  const auto& own = state_->contexts;
  if (local < own.size() && own[local].state_ == replica.state_) return;
  throw UsageError(fmt::format(
      "{}: replica {} of {} is of another strategy, or of the world before a resize(); expected "
      "the one that run() of this object's own strategy gives",
      operation, replica.rank(), replica.num_replicas_in_sync()));
}

void Strategy::require_one_each(size_t num_values, std::string_view method) const {
  if (num_values == static_cast<size_t>(world().local)) return;
  throw UsageError(fmt::format(
      "{}: got {} values, expected one for each of the {} replicas of this worker, as run() of "
      "this strategy returns them",
      method, num_values, world().local));
}

// For collectives of the groups: inside merge() the replicas' threads are here already.
void Strategy::on_groups(const std::function<void(ReplicaContext&, int)>& body) {
  const detail::OnHost on_host(*this);
  if (!state_->meeting->leading()) return run_all(body);
  state_->meeting->on_all([&](int local) { body(state_->contexts[local], local); });
}

void Strategy::run_all(const std::function<void(ReplicaContext&, int)>& body) {
  require_cross_replica("run");
  if (state_->meeting->leading())
    throw UsageError("run: called inside merge(), whose replicas are in run() already");
  if (world().plugin && !state_->on_host) throw UsageError(fmt::format("run: {}", kNotCompiled));
  const auto for_followers = [&](const auto& fn) {
    for (const auto& follower : state_->followers)
      if (const auto member = follower.lock()) fn(*member);
  };
  (void)gathers();  // two of them are an error before anybody waits
  detail::ForkedQueues queues(world());
  const auto prepared = [&](ReplicaContext& replica, int local) {
    const detail::CurrentReplica current(&replica);
    const OnQueue on(replica.queue());
    queues.begin(local);
    std::optional<detail::OwnRandomNumbers> own_numbers;
    if (world().size > 1) own_numbers.emplace();
    try {
      for_followers([&](WorldMember& member) { member.in_run(Moment::begins, local); });
      with_memory(replica.queue(), "in run()", [&] { body(replica, local); });
      for_followers([&](WorldMember& member) { member.in_run(Moment::ends, local); });
      queues.end(local);
    } catch (...) {
      queues.end(local);
      for_followers([&](WorldMember& member) { member.in_run(Moment::failed, local); });
      throw;
    }
  };
  try {
    world().in_turn() ? state_->run_in_turn(prepared) : state_->run_at_once(prepared);
  } catch (...) {
    queues.join();  // who saves what is there after an error reads it behind what was queued
    throw;
  }
  queues.join();
}

detail::OnHost::OnHost(const Strategy& strategy)
    : state_(strategy.state_), before_(std::exchange(state_->on_host, true)) {}

detail::OnHost::~OnHost() { state_->on_host = before_; }

const std::vector<ReplicaContext>& detail::OnHost::replicas() const { return state_->contexts; }

void Strategy::follow(std::weak_ptr<WorldMember> member, std::weak_ptr<Updater> updater) {
  const auto gone = [](const auto& one) { return one.expired(); };
  std::erase_if(state_->followers, gone);
  std::erase_if(state_->updaters, gone);
  state_->followers.push_back(std::move(member));
  if (!gone(updater)) state_->updaters.push_back(std::move(updater));
}

std::shared_ptr<Gathers> Strategy::gathers() const {
  std::shared_ptr<Gathers> found;
  if (options().shard != "parameters" || world().model_ranks() == 1) return found;
  for (const auto& one : state_->updaters) {
    const auto updater = one.lock();
    if (!updater || updater->parts().gathers == nullptr) continue;
    if (found)
      throw UsageError(
          "--shard parameters on stages, or ranks of axis tensor: a strategy has one optimizer "
          "there, since ranks would gather the parameters of two in another order; take --shard "
          "gradients, or one optimizer of one model");
    found = {updater, updater->parts().gathers};
  }
  return found;
}

void Strategy::resize(int replicas, std::vector<double> shares) {
  require_cross_replica("resize");
  Machine machine = detail::machine_here(state_->options);
  machine.gpus = world().on_devices();
  require_together(state_->options, {}, {.resizes = true}, machine);
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

void Strategy::require_meeting(std::string_view operation) const {
  state_->contexts.front().group_of_all(operation);
}

Strategy strategy_from_flags(int& argc, char** argv) {
  install_terminate_handler();
  data::serve_if_loader();  // which takes part in no job
  return Strategy(take_strategy_flags(argc, argv));
}

}  // namespace tutti
