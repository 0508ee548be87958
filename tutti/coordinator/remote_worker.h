/// RemoteWorker: what a step that runs by name on a worker (remote.h) sees of it.
/// Thread rule: used by the step that it was given to.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tutti {

namespace coordinator {
class ValueReader;
}

/// A value that every worker makes for itself, by a remote function, when a step first needs it.
/// Where a step's parameter is a T&, schedule() takes a PerWorker<T>. Cheap to copy.
template <class T>
class PerWorker {
 public:
  /// ClusterCoordinator::create_per_worker_dataset() makes them.
  PerWorker(int64_t number, std::string factory) : number_(number), factory_(std::move(factory)) {}
  int64_t number() const noexcept { return number_; }
  const std::string& factory() const noexcept { return factory_; }

 private:
  int64_t number_;
  std::string factory_;
};

/// The worker that a step runs on: who it is, and what it keeps between steps. A worker that was
/// started anew has kept nothing.
class RemoteWorker {
 public:
  RemoteWorker(int number, int num_workers) : number_(number), num_workers_(num_workers) {}
  ~RemoteWorker();
  RemoteWorker(const RemoteWorker&) = delete;

  int number() const noexcept { return number_; }            ///< 1 to num_workers(), as in messages
  int index() const noexcept { return number_ - 1; }         ///< from 0 on, to share things out
  int num_workers() const noexcept { return num_workers_; }  ///< without the coordinator

  /// This worker's T: made by T(worker), or T(), when it is first asked for, and kept until the
  /// job is over. What was made last goes first.
  template <class T>
  T& keep();

  /// What stands for a parameter T& of a step; `type` is typeid(T).name(). Made when it is first
  /// asked for. Throws Error when its factory makes something else, and what that throws.
  void* per_worker(coordinator::ValueReader& reader, const char* type);

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<void> value;
  };
  void* find(const std::string& key) const;
  void* add(const std::string& key, std::shared_ptr<void> value);

  const int number_;
  const int num_workers_;
  std::vector<Kept> kept_;
};

// ---- implementation of templates ----

template <class T>
T& RemoteWorker::keep() {
  const std::string key = typeid(T).name();
  if (void* const known = find(key)) return *static_cast<T*>(known);
  std::shared_ptr<T> made;
  if constexpr (std::constructible_from<T, RemoteWorker&>)
    made = std::make_shared<T>(*this);
  else
    made = std::make_shared<T>();
  return *static_cast<T*>(add(key, std::move(made)));
}

}  // namespace tutti
