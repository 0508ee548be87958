/// Restoring: reads a snapshot in a thread of its own, for a worker that must be heard of
/// meanwhile.
///
/// What was read waits for the worker: one message at a time, so a large snapshot is not read ahead
/// of the connections.
/// Thread rule: one thread, beside its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "tutti/ps/client/client_state.h"

namespace tutti::ps {

class Restoring {
 public:
  using Assign = std::function<void(Message)>;
  /// `restore` is called in the thread of this; `wake`, too, when there is something to hand on.
  Restoring(ClientState::Restore restore, std::function<void()> wake);
  /// What has not been read is given up, at the next message.
  ~Restoring();
  Restoring(const Restoring&) = delete;

  /// Behind those that began before.
  void begin(int partition, Assign assign);
  /// Calls the `assign` of the partition's begin() with what has been read, while its connection
  /// `has_room`. Throws what `restore` has thrown.
  void hand_on(const std::function<bool(int partition)>& has_room);
  /// Whether something waits that hand_on() would take.
  bool may_hand_on(const std::function<bool(int partition)>& has_room);

 private:
  struct Job {
    int partition = 0;
    Assign assign;
  };
  struct GivenUp {};

  void work();
  void offer(Message message);

  const ClientState::Restore restore_;
  const std::function<void()> wake_;
  std::mutex mutex_;  // guards all below but thread_
  std::condition_variable changed_;
  std::deque<Job> jobs_;            // the first is under way
  std::optional<Message> message_;  // of that
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tutti::ps
