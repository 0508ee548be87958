/// Client::Work: a client's connections, driven by one thread at a time, and what has come by them.
///
/// That is a thread that waits, if there is one, else the client's own: every hand-over between
/// threads costs tens of microseconds.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/ps/client/client.h"
#include "tutti/ps/client/client_state.h"
#include "tutti/ps/client/restoring.h"
#include "tutti/ps/values/sparse_batch.h"
#include "tutti/ps/view/outages.h"
#include "tutti/ps/view/view_link.h"
#include "tutti/ps/wire/shared_heap.h"
#include "tutti/ps/wire/streams.h"

namespace tutti::ps {

class Client::Work {
 public:
  using Condition = std::function<bool()>;
  using SharedBatch = std::shared_ptr<const SparseBatch>;

  struct Arrived {
    int64_t step = -1;
    int server = -1;
    Bytes values;  // until they were taken
  };
  struct ArrivingRows {
    SharedBatch batch;
    Array rows;
  };

  Work(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
       Initial initial, Restore restore);
  ~Work();

  // Waits with `lock` held until `done`, or says why not.
  void wait_for(std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                const Condition& done);
  void require_no_failure() const;
  // Sends what goes at once, in the caller's thread; the rest goes when that is possible.
  void send_here();
  // A step pulls and pushes the rows of the same keys.
  SharedBatch batch_of(int table, std::span<const uint64_t> keys);

  const ClientOptions options_;
  const std::shared_ptr<SharedHeap> heap_;
  mutable std::mutex mutex_;  // guards all below but thread_
  std::condition_variable changed_;
  ClientState state_;
  std::vector<Arrived> arrived_;              // by piece
  std::map<int64_t, ArrivingRows> arriving_;  // by sparse_pull
  std::map<int, SharedBatch> batches_;        // by table: the last
  int speaking_ = -1;                         // server whose message is read
  bool compared_ = false;                     // what is asked for, with the order that is followed
  std::string failure_;
  bool peer_lost_ = false;             // that is the failure
  std::map<int, std::string> counts_;  // by partition, as servers said
  Streams streams_;

 private:
  void work();
  // Until `ready` or then; whether it is.
  bool drive_until(std::unique_lock<std::mutex>& lock, TimePoint then, const Condition& ready);
  void wait_unlocked(std::unique_lock<std::mutex>& lock, Millis most,
                     std::chrono::microseconds poll);
  void turn();
  // True when nothing is left.
  bool send_all();
  bool has_room(int partition) const;
  void lose_peer(const std::string& words);
  void reach_servers();
  void take_rows(int64_t pull, int partition, const Bytes& rows);
  void deliver(int server, Message message);
  void on_connected(Peer peer);
  void on_closed(Peer peer, const std::string& how);
  void on_message(Peer from, const Message& message);
  void on_welcome(int partition, int server);
  std::string words() const;

  ViewLink link_;
  View coming_;  // before the first of all servers
  Outages outages_;
  std::map<int, TimePoint> next_tries_;  // to connect to a server
  bool ends_ = false;
  bool finishes_ = true;  // in order
  int num_waiting_ = 0;   // threads in drive_until()
  bool driven_ = false;   // by one of these
  TimePoint attended_{};  // when the last of them left; zero: they have left something to do
  std::condition_variable unattended_;
  Restoring restoring_;  // its thread wakes streams_
  std::thread thread_;
};

}  // namespace tutti::ps
