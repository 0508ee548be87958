/// Strategy: where the replicas of a model are and how they stay together, as in tf.distribute.
///
/// The same program runs under every strategy; one flag changes. Replicas of a worker are threads
/// (the caller is the first of them), workers are processes. Updates SUM over replicas: divide the
/// loss by the global batch (average_loss), never the gradient by the number of replicas.
///
/// Thread rule: a Strategy is used from one thread; what runs inside run() uses its ReplicaContext.
#pragma once

#include <torch/types.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/strategy/choice/options.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/sync/world.h"

namespace tutti {

class DistributedDataset;
class Gathers;
class Membership;
class MovingShares;
class Updater;
struct DistributeOptions;
namespace detail {
class OnHost;
}

/// For which replica a value is made (Strategy::values_from_function).
struct ValueContext {
  int rank = 0;  ///< in the world: tf.distribute's replica_id_in_sync_group
  int num_replicas_in_sync = 1;
};

/// For which worker a dataset is made (Strategy::distribute_from_function).
struct InputContext {
  int num_input_pipelines = 1;  ///< workers in step, each with one
  int input_pipeline_id = 0;    ///< this worker's number among them
  int num_replicas_in_sync = 1;
  uint64_t seed = 0;       ///< of the training
  int local_replicas = 1;  ///< of this worker, which take its batches in turn

  /// The batch of a replica; UsageError when the global one does not divide.
  int64_t per_replica_batch_size(int64_t global_batch_size) const;
};

class Strategy {
 public:
  /// Throws UsageError: unknown kind (nearest named), replicas out of range, multi_worker outside a
  /// launcher (the message has the `tutti run` line to type).
  explicit Strategy(const StrategyOptions& options = {});

  std::string_view kind() const noexcept;
  const StrategyOptions& options() const noexcept;  ///< resolved: nothing is unset
  const World& world() const noexcept;
  MovingShares* moving_shares() const noexcept;  ///< null: shares stay (moving_shares.h)
  int num_replicas_in_sync() const noexcept { return world().num_replicas(); }
  const ReductionShape& reduction_shape() const noexcept { return world().shape; }

  /// Runs `fn(ReplicaContext&)` on each local replica and returns their results, when all are done.
  /// UsageError under tpu, whose replicas are devices that run compiled programs alone.
  /// Rethrows the first error; the others are released from their waits, and every later run()
  /// throws it too, until resize() makes a new world. A replica that is stuck in user code for
  /// longer than twice the time limit after the rest is named, and the process ends.
  template <class Fn>
  auto run(Fn&& fn)
      -> std::conditional_t<std::is_void_v<std::invoke_result_t<Fn&, ReplicaContext&>>, void,
                            PerReplica<std::invoke_result_t<Fn&, ReplicaContext&>>>;

  /// tf.distribute's merge_call, inside run(): each replica calls it with its own `values`; when
  /// all of this worker have, `fn(Strategy&, const PerReplica<T>&...)` runs once, in cross-replica
  /// context, where reduce and gather may be called (run may not). What it returns goes to every
  /// replica; of a PerReplica, each gets its own. Throws on every replica what fn throws; Timeout
  /// naming a replica that has not come; Mismatch when values or results are of unlike types on the
  /// replicas; UsageError outside of run() and where replicas take turns.
  template <class Fn, class... T>
  auto merge(ReplicaContext& replica, Fn&& fn, T... values);

  /// Combines the replicas' values of the whole world, in the order of the reduction shape, on the
  /// CPU. SUM and MEAN: over replicas, equally, so a mean of means is wrong for uneven batches.
  /// Collective over workers. Tensors: same shape on all replicas. Where workers may be lost, of
  /// those that are there; not before the Optimizer is made. In merge(), not in run().
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& values);
  double reduce(ReduceOp op, const PerReplica<double>& values);
  template <size_t K>
  std::array<double, K> reduce(ReduceOp op, const PerReplica<std::array<double, K>>& values);

  /// As reduce, and over the dimensions `axes` too, whose sizes may differ: MEAN counts examples,
  /// so that partial and empty batches weigh by their true size. 0 when there are none. 16-bit
  /// dtypes are added in float32 and rounded once. Without axes: as reduce.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& values, at::IntArrayRef axes);

  /// All replicas' tensors along `axis`, in rank order; otherwise as reduce. Of one dtype and one
  /// shape but for that axis, else Mismatch naming a replica; UsageError without that axis.
  at::Tensor gather(const PerReplica<at::Tensor>& values, int64_t axis = 0);

  /// fn(ValueContext) for each local replica, on the calling thread, in rank order.
  template <class Fn>
  auto values_from_function(Fn&& fn) -> PerReplica<std::invoke_result_t<Fn&, const ValueContext&>>;

  /// Throws UsageError naming `operation` for a replica of another strategy or an earlier world.
  void require_own(const ReplicaContext& replica, std::string_view operation) const;

  /// Throws UsageError naming `operation` where replicas do not meet in every step.
  void require_meeting(std::string_view operation) const;

  /// The dataset, cut by global batch: replica r takes its share; Mismatch where workers' differ.
  /// AutoShard::file, off, hint: a worker has batches of global_batch_size / num_replicas_in_sync.
  DistributedDataset distribute(const data::Dataset& dataset);
  DistributedDataset distribute(const data::Dataset& dataset, const DistributeOptions& options);
  /// A dataset of this worker's own, which `fn` makes, once and now: batched by the batch of a
  /// *replica*, and neither cut nor sharded further. Each replica takes the next of its batches.
  /// Workers may have different numbers of them: replicas without get empty parts. Collective over
  /// workers where replicas are in step. UsageError where workers may be lost.
  DistributedDataset distribute_from_function(
      const std::function<data::Dataset(const InputContext&)>& fn);

  /// Replaces the world by one of `replicas` thread replicas; models, optimizers and their state
  /// stay (the first ones keep their place). mirrored and one_device; between runs.
  void resize(int replicas, std::vector<double> shares = {});

  /// Where workers are not in step, set by the Optimizer that is connected to servers: gives this
  /// worker its next batch of an epoch (-1: none left), and takes back the one before. Once `whose`
  /// is gone, that of the one before it.
  using NextBatch =
      std::function<int64_t(int dataset, int64_t epoch, int64_t num_batches, int64_t returned)>;
  void take_batches_from(NextBatch next, const void* whose);
  void take_no_more_batches_from(const void* whose);
  const NextBatch& next_batch() const noexcept;

  /// By what workers tell each other things outside of run().
  Membership& membership() const noexcept;

  /// Calls `fn` on the chief: on the lowest worker that is there, and on the next when that one is
  /// lost before all others know that it has come through. Collective over workers.
  void by_chief(const std::function<void()>& fn);

  /// It is told of a resize, for as long as it lives; `updater` is what it updates by, if it does.
  void follow(std::weak_ptr<WorldMember> member, std::weak_ptr<Updater> updater = {});
  /// Of these what ranks gather by between the actions of a pipeline; null: nothing. UsageError for
  /// two, to which ranks would come in another order.
  std::shared_ptr<Gathers> gathers() const;

 private:
  friend class detail::OnHost;
  using Lead = std::function<std::shared_ptr<void>(const std::vector<std::shared_ptr<void>>&)>;
  void run_all(const std::function<void(ReplicaContext&, int)>& body);
  void on_groups(const std::function<void(ReplicaContext&, int)>& body);
  void require_cross_replica(std::string_view method) const;
  void require_one_each(size_t num_values, std::string_view method) const;
  std::shared_ptr<void> merge_all(ReplicaContext& replica, std::shared_ptr<void> value,
                                  const std::type_info& signature, const Lead& lead);
  void reduce_doubles(ReduceOp op, std::span<double> values);

  std::shared_ptr<struct StrategyState> state_;
};

/// Reads and removes the strategy's own flags from argv, those of docs/guide/command_line.md from
/// --strategy to --host-sums. Throws UsageError. What nobody catches ends the program in order from
/// here on (exit_code.h).
Strategy strategy_from_flags(int& argc, char** argv);

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

template <class Fn, class... T>
auto Strategy::merge(ReplicaContext& replica, Fn&& fn, T... values) {
  using Brought = std::tuple<T...>;
  using Result = std::invoke_result_t<Fn&, Strategy&, const PerReplica<T>&...>;
  const auto lead = [&](const std::vector<std::shared_ptr<void>>& all) -> std::shared_ptr<void> {
    const auto column = [&]<size_t I>(std::integral_constant<size_t, I>) {
      std::vector<std::tuple_element_t<I, Brought>> each;
      for (const auto& one : all) each.push_back(std::get<I>(*static_cast<Brought*>(one.get())));
      return PerReplica(std::move(each), world().first_rank);
    };
    const auto call = [&]<size_t... I>(std::index_sequence<I...>) {
      return fn(*this, column(std::integral_constant<size_t, I>())...);
    };
    if constexpr (std::is_void_v<Result>)
      return call(std::index_sequence_for<T...>()), nullptr;
    else
      return std::make_shared<Result>(call(std::index_sequence_for<T...>()));
  };
  const auto result = merge_all(replica, std::make_shared<Brought>(std::move(values)...),
                                typeid(Result(T...)), lead);
  if constexpr (requires(Result& made) { made.local(replica); })
    return static_cast<Result*>(result.get())->local(replica);
  else if constexpr (!std::is_void_v<Result>)
    return *static_cast<Result*>(result.get());
}

template <class Fn>
auto Strategy::values_from_function(Fn&& fn)
    -> PerReplica<std::invoke_result_t<Fn&, const ValueContext&>> {
  require_cross_replica("values_from_function");
  std::vector<std::invoke_result_t<Fn&, const ValueContext&>> values;
  for (int local = 0; local < world().local; ++local)
    values.push_back(fn(ValueContext{world().first_rank + local, num_replicas_in_sync()}));
  return {std::move(values), world().first_rank};
}

template <size_t K>
std::array<double, K> Strategy::reduce(ReduceOp op,
                                       const PerReplica<std::array<double, K>>& values) {
  require_one_each(values.values().size(), "reduce");
  std::vector<double> flat;
  flat.reserve(values.values().size() * K);
  for (const auto& value : values.values()) flat.insert(flat.end(), value.begin(), value.end());
  reduce_doubles(op, flat);
  std::array<double, K> result;
  std::copy_n(flat.begin(), K, result.begin());
  return result;
}

}  // namespace tutti
