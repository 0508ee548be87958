/// ClusterCoordinator: one program that hands out steps to workers, whichever is free.
///
///   double train(tutti::RemoteWorker& worker, int64_t batches) { ... }
///   const auto train_step = tutti::remote("train", train);
///
///   int main() {
///     return tutti::coordinate([](tutti::ClusterCoordinator& cluster) {
///       for (int i = 0; i < 100; ++i) cluster.schedule(train_step, 10);
///       cluster.join();
///     });
///   }
///
///   tutti run --servers 1 -n 2 --coordinator ./program
///
/// The same program runs in every process of the job: process 0 is the coordinator, the others
/// (workers 1, 2, ...) serve steps. Steps train on parameter servers, strategy parameter_server
/// with staleness inf; the coordinator may have a Model of the same parameters, and evaluate it.
/// Thread rule: a ClusterCoordinator may be used from any thread; steps run one after another in
/// the main thread of their worker.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/coordinator/dispatcher.h"
#include "tutti/coordinator/remote.h"

namespace tutti {

struct CoordinatorOptions {
  Millis limit{kDefaultTimeLimit};            ///< for the processes of the job to find each other
  Millis without_workers{kDefaultTimeLimit};  ///< steps wait so long for a worker to come (again)
  Millis step_limit{600'000};                 ///< a step that takes longer is an error
  int64_t queue = int64_t{256} << 10;         ///< steps that may wait; schedule() then blocks
};

/// What a step will give: ClusterCoordinator::fetch() waits for it. Copies share it. It is no
/// argument of another step.
template <class T>
class RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<const coordinator::Ticket> ticket)
      : ticket_(std::move(ticket)) {}

 private:
  friend class ClusterCoordinator;
  std::shared_ptr<const coordinator::Ticket> ticket_;
};

class ClusterCoordinator {
 public:
  /// Use coordinate().
  ClusterCoordinator(const coordinator::DispatcherOptions& options, const Credentials& credentials);

  /// Hands in a step and returns; waits only while the queue is full. A free worker takes it: steps
  /// begin in the order of scheduling. *At least once*: a step whose worker is lost before it has
  /// answered is run again, by another, though it may have pushed its gradients already.
  ///
  /// Throws the first error of a step before, as join() does.
  template <class Result, class... Parameters, class... Arguments>
  RemoteValue<Result> schedule(const RemoteFunction<Result(Parameters...)>& step,
                               const Arguments&... arguments);

  /// Waits until all steps that were scheduled have ended; what they have pushed is then in the
  /// parameters.
  ///
  /// Throws Error with the first error of a step, with its name and worker. From that error on no
  /// step begins any more: those that wait are cancelled, those that run come to their end. It is
  /// thrown once, by the next schedule(), join() or done(); afterwards the coordinator goes on as
  /// if nothing had been scheduled. So it is with steps that wait for a worker longer than
  /// CoordinatorOptions::without_workers, or run longer than its step_limit.
  void join() { dispatcher_.join(); }
  /// Whether all have ended. Throws as join().
  bool done() { return dispatcher_.done(); }

  /// Waits for the step, and returns what it gave. Throws Error with its own error, or with that
  /// after which it was cancelled; each time.
  template <class Result>
  Result fetch(const RemoteValue<Result>& value);
  template <class Result>
  std::vector<Result> fetch(const std::vector<RemoteValue<Result>>& values);

  /// A value of its own for every worker, to be given to steps that take a Made&: its dataset, as a
  /// rule. Each worker makes it by `factory` when it first needs it, and so does one that was
  /// started anew.
  template <class Made>
  PerWorker<Made> create_per_worker_dataset(const RemoteFunction<Made()>& factory) {
    return {++num_per_worker_, factory.name()};
  }

  int num_workers() const noexcept { return num_workers_; }
  /// Of steps: scheduled, done, failed, cancelled, repeated; and of workers lost.
  coordinator::DispatchCounts counts() const { return dispatcher_.counts(); }

 private:
  const int num_workers_;
  std::atomic<int64_t> num_per_worker_{0};
  coordinator::Dispatcher dispatcher_;
};

/// The whole of main(): runs `program` in the coordinator; in a worker, serves steps until the
/// coordinator is done, lost, or has refused this process. Returns the exit code of the process: 0;
/// 2 for UsageError and DataError, 128+signal for Interrupted, 1 for other errors, which are
/// printed and told to the launcher. Once a process, in its main thread.
int coordinate(const std::function<void(ClusterCoordinator&)>& program,
               const CoordinatorOptions& options = {});

// ---- implementation of templates ----

template <class Result, class... Parameters, class... Arguments>
RemoteValue<Result> ClusterCoordinator::schedule(const RemoteFunction<Result(Parameters...)>& step,
                                                 const Arguments&... arguments) {
  static_assert(std::is_void_v<Result> || coordinator::Sendable<Result>,
                "schedule: the result of this step cannot travel; a tensor, number, string, vector "
                "or tuple of them can");
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "schedule: give the step as many arguments as it takes beside its RemoteWorker&");
  coordinator::ValueWriter writer;
  (coordinator::Argument<Parameters>::write(writer, arguments), ...);
  return RemoteValue<Result>(dispatcher_.schedule(step.name(), writer.take()));
}

template <class Result>
Result ClusterCoordinator::fetch(const RemoteValue<Result>& value) {
  const ps::Bytes bytes = dispatcher_.fetch(*value.ticket_);
  if constexpr (!std::is_void_v<Result>) {
    coordinator::ValueReader reader(bytes.span);
    return coordinator::Codec<Result>::read(reader);
  }
}

template <class Result>
std::vector<Result> ClusterCoordinator::fetch(const std::vector<RemoteValue<Result>>& values) {
  std::vector<Result> all;
  for (const auto& value : values) all.push_back(fetch(value));
  return all;
}

}  // namespace tutti
