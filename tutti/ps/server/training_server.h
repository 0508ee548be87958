/// TrainingServer: a process's part, as a parameter server, in one training of a job.
///
/// Each training has connections, a listener and state of its own; the process's memory is shared.
/// The first training's stays until the job is over, and hears of the others.
/// Thread rule: one thread runs; the rest is called from any.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/net/listener.h"
#include "tutti/ps/server/parallel.h"
#include "tutti/ps/server/pulse.h"
#include "tutti/ps/server/server.h"
#include "tutti/ps/server/server_state.h"
#include "tutti/ps/snapshot/snapshot_writer.h"
#include "tutti/ps/view/view_link.h"
#include "tutti/ps/wire/streams.h"

namespace tutti::ps {

class TrainingServer {
 public:
  struct Place {
    int training = 0;
    int number = -1;  ///< among its servers; -1: any
    Address address;  ///< to be reached at
  };
  /// Called from run(): a server of another training is to begin.
  using Also = std::function<void(int training, int number)>;
  TrainingServer(const ServerOptions& options, const Credentials& credentials, const Place& place,
                 std::shared_ptr<SharedHeap> heap, Also also = {});

  /// Until its training, or, of the first, the job is over; then says goodbye, and has forgotten
  /// all. Throws as run_server().
  void run();
  /// run() returns soon.
  void stop();
  /// run() soon throws this.
  void fail(std::exception_ptr why);

 private:
  void turn(TimePoint looks);
  template <class Action>
  void without_lock(Action action);
  template <class Decision>
  void decide(Decision decision);
  void forget();
  void on_message(Peer from, Message message);
  void begin(int number);
  ServerState::Ordering ordering();
  std::string order_words() const;  // for the view service
  void record(int partition, const PartitionState& state, const OrderRecord& record,
              const Message& order);
  // Where that record of the partition is to be written.
  OrderPart& part_at(int partition, const PartitionState& state, int64_t number);
  // What was recorded does not go with this process any more.
  void flush_parts(TimePoint now, bool at_once);
  void end_parts();
  void continue_copies();
  bool may_copy() const;
  bool has_room(int follower) const;
  void say_written(Message written);
  void for_each(int64_t count, const std::function<void(int64_t)>& fn);
  void deliver(Peer to, Message message);
  void on_connected(Peer peer);
  void on_closed(Peer peer, const std::string& how);
  void reach_followers();
  std::string last_words() const;

  const ServerOptions options_;
  const std::shared_ptr<const UpdateOrder> replay_;
  const int training_;
  const std::string job_;
  const Also also_;
  int number_ = -1;
  const std::shared_ptr<SharedHeap> heap_;
  Listener listener_;
  ParallelFor parallel_;
  std::unique_ptr<ServerState> state_;
  Streams streams_;
  ViewLink link_;
  SnapshotWriter writer_{[this] { streams_.wake(); }};
  std::map<int, TimePoint> next_tries_;  // to connect to a follower
  struct Part {
    int64_t next = 0;  // record
    std::unique_ptr<OrderPart> file;
  };
  std::map<int, Part> parts_;  // of the order of updates, by partition
  bool knows_asked_ = false;   // it is noted beside them
  TimePoint next_flush_{};

  std::mutex mutex_;  // guards streams_, link_ and what follows
  bool finished_ = false;
  std::exception_ptr failure_;  // of another training's server
  std::string last_words_;
  std::optional<Pulse> pulse_;
};

}  // namespace tutti::ps
