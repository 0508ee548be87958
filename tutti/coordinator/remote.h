/// Steps that run on other processes of a job, by name.
///
///   double train(tutti::RemoteWorker& worker, int64_t batch) { ... }
///   const auto train_step = tutti::remote("train", train);  // at namespace scope, in every
///   process
///
/// A coordinator schedules them (cluster_coordinator.h). Thread rule: remote() in one thread,
/// before coordinate().
#pragma once

#include <string>
#include <utility>

#include "tutti/coordinator/detail/step.h"
#include "tutti/coordinator/remote_worker.h"

namespace tutti {

/// A function that is known by its name in every process of a job.
template <class Signature>
class RemoteFunction;
template <class Result, class... Parameters>
class RemoteFunction<Result(Parameters...)> {
 public:
  explicit RemoteFunction(std::string name) : name_(std::move(name)) {}
  const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
};

namespace coordinator {

template <class Result, class... Parameters>
RemoteFunction<Result(Parameters...)> registered(std::string name,
                                                 Result (*function)(RemoteWorker&, Parameters...)) {
  register_step(step_of<Result, Parameters...>(
      name, reinterpret_cast<void (*)()>(function),
      [function](RemoteWorker& worker, auto&&... each) -> Result {
        return function(worker, std::forward<decltype(each)>(each)...);
      }));
  return RemoteFunction<Result(Parameters...)>(std::move(name));
}
template <class Result, class... Parameters>
RemoteFunction<Result(Parameters...)> registered(std::string name,
                                                 Result (*function)(Parameters...)) {
  register_step(step_of<Result, Parameters...>(name, reinterpret_cast<void (*)()>(function),
                                               [function](RemoteWorker&, auto&&... each) -> Result {
                                                 return function(
                                                     std::forward<decltype(each)>(each)...);
                                               }));
  return RemoteFunction<Result(Parameters...)>(std::move(name));
}

}  // namespace coordinator

/// Gives `function` a name under which a coordinator's program can have it run on a worker. It
/// captures nothing: what it needs comes as arguments, or is kept by its worker
/// (RemoteWorker::keep, PerWorker). First a RemoteWorker&, if it wants one; then tensors, numbers,
/// strings, vectors and tuples of them; and T& for what a PerWorker<T> stands for. Its result is
/// one of those values.
///
/// Called at namespace scope, or in main() before coordinate(), so that every process knows it.
/// A name that two functions have is an error of coordinate().
template <class Function>
auto remote(std::string name, Function function) {
  static_assert(coordinator::Captureless<Function>,
                "remote: a step is a function or a lambda without captures");
  return coordinator::registered(std::move(name), +function);
}

}  // namespace tutti
