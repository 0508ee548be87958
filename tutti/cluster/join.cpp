#include "tutti/cluster/join.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/cluster/lifeline.h"

namespace tutti {
namespace {

using detail::Lifeline;
using detail::Message;

const char* class_of(const std::exception& error) {
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return "PeerLost";
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return "Timeout";
  return "error";
}

std::terminate_handler previous_terminate = nullptr;
std::once_flag terminate_is_set;  // a second time our own handler would be the previous one

[[noreturn]] void report_and_terminate() {
  if (const auto pending = std::current_exception()) {
    try {
      std::rethrow_exception(pending);
    } catch (const std::exception& error) {
      report_failure(error);
    } catch (...) {
      report_failure(Error("an exception that is not a std::exception"));
    }
  }
  if (previous_terminate != nullptr) previous_terminate();
  std::abort();
}

Group join_workers(Millis limit) {
  const auto environment = worker_environment();
  if (!environment) return Group();
  const Deadline deadline(limit);
  set_log_worker(environment->worker, environment->num_workers);
  Lifeline& lifeline = Lifeline::of(*environment);
  std::call_once(terminate_is_set,
                 [] { previous_terminate = std::set_terminate(report_and_terminate); });
  lifeline.send({.kind = Message::Kind::joined}, {}, deadline);
  lifeline.wait_until_all_joined(deadline);
  if (environment->num_workers == 1) return Group();
  const auto segment = ShmSegment::open(environment->segment_fd);
  return Group(make_shm(segment, environment->worker, false, deadline.left(),
                        [&] { return lifeline.first_loss(); }));
}

/// Every worker gives the same number, or every worker throws.
void require_same(Group& workers, int64_t replicas, const Deadline& deadline) {
  std::vector<int64_t> all(static_cast<size_t>(workers.size()));
  workers.all_gather(span_of(std::span(&replicas, 1)), span_of(std::span(all)), deadline.left())
      .wait(deadline.left());
  const auto other = std::find_if(all.begin(), all.end(), [&](int64_t n) { return n != all[0]; });
  if (other == all.end()) return;
  throw Mismatch(fmt::format(
      "join_replicas, worker {} of {}: worker 0 asks for {} replicas a worker, worker {} for {}\n"
      "  give every worker the same number",
      workers.rank(), workers.size(), all[0], other - all.begin(), *other));
}

/// The segment of one group of replicas: made by worker 0, given to the others by descriptor.
ShmSegment shared_segment(Lifeline& lifeline, const Group& workers, int size, int number,
                          const ShmOptions& options, const Deadline& deadline) {
  if (workers.rank() != 0) {
    return ShmSegment::open(lifeline.wait_for_share(number, deadline).get(), options);
  }
  try {
    auto segment = ShmSegment::create(size, options);
    const int descriptor = segment.descriptor();
    lifeline.send({.kind = Message::Kind::share, .number = number}, {&descriptor, 1}, deadline);
    return segment;
  } catch (const Error& error) {
    lifeline.send({.kind = Message::Kind::refused, .number = number, .text = error.what()}, {},
                  deadline);
    throw;
  }
}

/// This worker's members. Each is made in a thread of its own, since each waits for all others.
std::vector<Group> make_members(const ShmSegment& segment, int first_rank, int count,
                                Lifeline& lifeline, const Deadline& deadline) {
  std::vector<Group> members(static_cast<size_t>(count));
  std::vector<std::exception_ptr> failures(members.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        members[i] = Group(make_shm(segment, first_rank + static_cast<int>(i), false,
                                    deadline.left(), [&] { return lifeline.first_loss(); }));
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return members;
}

std::vector<Group> local_members(int count, const ShmOptions& options) {
  if (count == 1) return {Group()};
  std::vector<Group> members;
  for (auto& engine : make_shm_threads(count, options)) members.emplace_back(std::move(engine));
  return members;
}

}  // namespace

Group join(Millis limit) {
  static std::mutex mutex;
  static std::optional<Group> group;
  std::lock_guard lock(mutex);
  if (!group) group = join_workers(limit);
  return *group;
}

std::vector<Group> join_replicas(int replicas_per_worker, const JoinOptions& options) {
  if (replicas_per_worker < 1) {
    throw UsageError(fmt::format("join_replicas: {} replicas a worker; at least 1 is needed",
                                 replicas_per_worker));
  }
  const Deadline deadline(options.limit);
  const ShmOptions shm{.pinned = options.pinned};
  Group workers = join(options.limit);
  if (const auto environment = worker_environment(); environment && replicas_per_worker > 1) {
    Lifeline::of(*environment)
        .send({.kind = Message::Kind::replicas, .number = replicas_per_worker}, {}, deadline);
  }
  if (workers.size() == 1) return local_members(replicas_per_worker, shm);
  require_same(workers, replicas_per_worker, deadline);
  static std::atomic<int> groups_made{0};
  Lifeline& lifeline = Lifeline::of(worker_environment().value());
  const ShmSegment segment = shared_segment(lifeline, workers, workers.size() * replicas_per_worker,
                                            groups_made++, shm, deadline);
  return make_members(segment, workers.rank() * replicas_per_worker, replicas_per_worker, lifeline,
                      deadline);
}

void report_failure(const std::exception& error) noexcept {
  try {
    const auto environment = worker_environment();
    if (!environment) return;
    const auto text = fmt::format("{}: {}", class_of(error), plain_words(error.what()));
    Lifeline::of(*environment)
        .send({.kind = Message::Kind::failed, .text = text}, {}, Deadline(Millis{200}));
  } catch (const std::exception& failure) {
    log(LogLevel::debug, "the launcher was not told: {}", failure.what());
  }
}

}  // namespace tutti
