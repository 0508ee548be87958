/// Strategy: where the replicas of a model are and how they stay together. tf.distribute's
/// contract.
///
/// The same program runs under every strategy; one flag changes. Replicas of a worker are threads
/// (the caller is the first of them), workers are processes. Updates SUM over replicas: divide the
/// loss by the global batch (average_loss), never the gradient by the number of replicas.
///
/// Thread rule: a Strategy is used from one thread; what runs inside run() uses its ReplicaContext.
#pragma once

#include <torch/types.h>

#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/strategy/options.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/sync/replicated_options.h"
#include "tutti/sync/world.h"

namespace tutti {

class DistributedDataset;

class Strategy {
 public:
  /// Throws UsageError: unknown kind (nearest named), replicas out of range, multi_worker outside a
  /// launcher (the message has the `tutti run` line to type).
  explicit Strategy(const StrategyOptions& options = {});

  std::string_view kind() const noexcept;
  const StrategyOptions& options() const noexcept;  ///< resolved: nothing is unset
  const World& world() const noexcept;
  int num_replicas_in_sync() const noexcept { return world().size; }
  const ReductionShape& reduction_shape() const noexcept { return world().shape; }

  /// Runs `fn(ReplicaContext&)` on each local replica and returns their results, when all are done.
  /// Rethrows the first error; the others are released from their waits, and every later run()
  /// throws it too, until resize() makes a new world. A replica that is stuck in user code for
  /// longer than the time limit after the rest is named, and the process ends.
  template <class Fn>
  auto run(Fn&& fn)
      -> std::conditional_t<std::is_void_v<std::invoke_result_t<Fn&, ReplicaContext&>>, void,
                            PerReplica<std::invoke_result_t<Fn&, ReplicaContext&>>>;

  /// Combines the replicas' values of the whole world, in the order of the reduction shape. SUM and
  /// MEAN (over replicas, equally). Collective over workers. Tensors: same shape on all replicas.
  /// Where workers may be lost, of those that are there; not before the Optimizer is made.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& values);
  double reduce(ReduceOp op, const PerReplica<double>& values);
  template <size_t K>
  std::array<double, K> reduce(ReduceOp op, const PerReplica<std::array<double, K>>& values);

  /// As reduce, and over dimension `axis` too: MEAN counts examples, so that partial and empty
  /// batches weigh by their true size.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& values, int64_t axis);

  /// Throws UsageError naming `operation` where replicas do not meet in every step
  /// (ReplicaContext::group_of_all).
  void require_meeting(std::string_view operation) const;

  /// The dataset, cut by global batch: replica r takes its share of each.
  DistributedDataset distribute(const data::Dataset& dataset);

  /// Replaces the world by one of `replicas` thread replicas; models, optimizers and their state
  /// stay (the first ones keep their place). mirrored and one_device; between runs.
  void resize(int replicas, std::vector<double> shares = {});

  /// Where workers are not in step: what gives this worker its next batch of an epoch (-1: none
  /// left), and takes back the one before. Set by the Optimizer that is connected to servers.
  using NextBatch =
      std::function<int64_t(int dataset, int64_t epoch, int64_t num_batches, int64_t returned)>;
  void take_batches_from(NextBatch next);
  const NextBatch& next_batch() const noexcept;

  /// The world without workers that are lost: who is left has its replicas numbered anew, and the
  /// lowest of them is chief; a worker that came again too late for it has no part (first_rank is
  /// size). Where the loss of a worker ends the job: world(). Collective over workers.
  World those_here();

  /// Calls `fn` on the chief: on the lowest worker that is there, and on the next when that one is
  /// lost before all others know that it has come through. Collective over workers.
  void by_chief(const std::function<void()>& fn);

  /// Where workers may be lost: brings `value` and returns, by worker, what all that are there have
  /// brought. Collective over workers. UsageError before the Optimizer is made, which is connected
  /// to servers and says by what workers meet.
  using Meet =
      std::function<std::map<int, std::vector<std::byte>>(std::span<const std::byte> value)>;
  std::map<int, std::vector<std::byte>> meet(std::span<const std::byte> value);
  void meet_by(Meet meet);
  bool can_meet() const noexcept;

  /// What follows the world is told of a resize, for as long as it lives.
  void follow(std::weak_ptr<WorldMember> member);

 private:
  void run_all(const std::function<void(ReplicaContext&, int)>& body);
  void reduce_doubles(ReduceOp op, std::span<double> values);
  int worker() const { return world().first_rank / world().local; }

  std::shared_ptr<struct StrategyState> state_;
};

/// Reads and removes the strategy's own flags from argv: --strategy, --replicas, --reduction-shape,
/// --threads, --time-limit (seconds), --seed, --shares 2,1 (one per replica), --reduction NAME,
/// --compression topk:0.01, --compression-start STEP, --algorithm-table FILE, --staleness 0|s|inf,
/// --drop-slowest K, --on-lost-worker end|continue|wait, --scale-by-staleness,
/// --delay-compensation LAMBDA, --placement NAME, --partition HOW, --host-sums on|off. Prints the
/// error and exits with 2 when they are wrong.
Strategy strategy_from_flags(int& argc, char** argv);

namespace detail {

/// The reduction and compression that a strategy was given.
ReplicatedOptions replicated_options(const StrategyOptions& options);

}  // namespace detail

// ---- implementation of templates ----

template <class Fn>
auto Strategy::run(Fn&& fn)
    -> std::conditional_t<std::is_void_v<std::invoke_result_t<Fn&, ReplicaContext&>>, void,
                          PerReplica<std::invoke_result_t<Fn&, ReplicaContext&>>> {
  using Result = std::invoke_result_t<Fn&, ReplicaContext&>;
  if constexpr (std::is_void_v<Result>) {
    run_all([&fn](ReplicaContext& replica, int) { fn(replica); });
  } else {
    std::vector<std::optional<Result>> results(world().local);
    run_all([&](ReplicaContext& replica, int local) { results[local].emplace(fn(replica)); });
    std::vector<Result> values;
    values.reserve(results.size());
    for (auto& result : results) values.push_back(std::move(*result));
    return PerReplica<Result>(std::move(values), world().first_rank);
  }
}

template <size_t K>
std::array<double, K> Strategy::reduce(ReduceOp op,
                                       const PerReplica<std::array<double, K>>& values) {
  std::vector<double> flat;
  flat.reserve(values.values().size() * K);
  for (const auto& value : values.values()) flat.insert(flat.end(), value.begin(), value.end());
  reduce_doubles(op, flat);
  std::array<double, K> result;
  std::copy_n(flat.begin(), K, result.begin());
  return result;
}

}  // namespace tutti
