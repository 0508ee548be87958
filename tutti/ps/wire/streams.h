/// Streams: the connections of one process of a parameter server job, by peer, and the waiting for
/// all of them at once.
///
/// Thread rule: one thread at a time (callers lock), but wake() may come from any thread, and
/// wait() may run while another thread uses the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/net/listener.h"
#include "tutti/ps/wire/frame_stream.h"
#include "tutti/ps/wire/host_memory.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// Purposes of connections, in the facts of their handshakes.
inline constexpr const char* kWorkerPurpose = "ps-worker";
inline constexpr const char* kServerPurpose = "ps-server";
inline constexpr const char* kViewPurpose = "ps-view";

/// Where a process of the job is reached: its address, and the name of its memory on its host.
struct Whereabouts {
  std::string address;  ///< "10.0.0.7:41023"
  std::string memory;   ///< HostMemory::name(), or ""

  std::string text() const { return address + " " + memory; }
  static Whereabouts from(const std::string& text);
};

class Streams {
 public:
  /// Called from process().
  struct Events {
    std::function<void(Peer, Message)> message;
    std::function<void(Peer)> connected;
    /// A connection ended, or could not be made; `how` is a predicate.
    std::function<void(Peer, const std::string& how)> closed;
  };
  /// What received payloads lie in, and what proves that this process is of the job. Without
  /// `share_memory` this process neither lends nor maps memory: payloads go as bytes.
  Streams(std::shared_ptr<SharedHeap> heap, const Credentials& credentials, Events events,
          bool share_memory = true);
  /// Closes all.
  ~Streams();
  Streams(const Streams&) = delete;

  /// From now on connections of `purpose` that come to `listener` are of this kind, numbered by the
  /// rank in their facts; a second one of a peer takes the place of the first. Those to the view
  /// service are numbered as they come, from 1 on.
  void take_from(Listener& listener, const std::string& purpose, Peer::Kind kind);
  /// Begins to connect, in the background. `facts` say who this process is.
  void connect(Peer to, const Whereabouts& where, Facts facts, const std::string& who,
               Millis limit);
  /// To the view service, Peer{}: tries until somebody is there.
  void connect_to_service(const HostPort& service, Millis limit);
  bool has(Peer peer) const { return streams_.contains(peer) || connecting_.contains(peer); }

  /// Puts a message behind those that wait (FrameStream::send); dropped when there is no
  /// connection.
  void send(Peer to, Message message, int priority = 0);
  /// Sends what goes. True when nothing waits for that peer.
  bool flush(Peer to);
  /// FrameStream::bytes_waiting(); 0 when there is no connection.
  int64_t bytes_waiting(Peer to) const;
  /// Ends a connection without `closed`.
  void drop(Peer peer);

  /// Waits until something can be done; at most so long. For `poll` it looks again and again before
  /// it sleeps: waking a core that has gone idle may take longer than what it is woken for.
  void wait(Millis limit, std::chrono::microseconds poll = {});
  /// Does all that can be done now.
  void process();
  void wake() noexcept;

  /// HostMemory::name(), for Whereabouts; "" where memory is not shared.
  std::string memory_name() const { return memory_ ? memory_->name() : ""; }
  int64_t bytes_sent() const;      ///< of payloads, shared ones included, on all connections so far
  int64_t bytes_received() const;  ///< as bytes_sent()

 private:
  struct Made {  // by a thread that connects or looks for shared memory
    Peer peer;
    std::unique_ptr<Link> link;
    std::shared_ptr<PeerHeap> heap;
    std::string failure;
  };
  struct Maker {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  void make(Peer peer, std::function<Made()> how);
  void take_made();
  void add(Made made);
  std::optional<Message> receive(Peer peer);
  void receive_all(Peer peer);
  void close(Peer peer, const std::string& how);
  void join_makers(bool all);
  std::shared_ptr<PeerHeap> open_heap(const std::string& name, const std::string& who) const;

  const Credentials credentials_;
  const std::shared_ptr<SharedHeap> heap_;
  const std::unique_ptr<const HostMemory> memory_;  // null: not shared
  const Events events_;
  const FileDescriptor wake_;
  std::map<Peer, std::unique_ptr<FrameStream>> streams_;
  std::map<Peer, std::string> broken_;  // connections that process() is to close, and why
  std::set<Peer> connecting_;
  std::vector<std::pair<Listener*, std::string>> served_;
  int64_t closed_sent_ = 0;  // payload bytes of connections that are gone
  int64_t closed_received_ = 0;

  std::mutex mutex_;  // guards what follows
  std::vector<Made> made_;
  std::list<Maker> makers_;
  std::vector<std::pair<int, short>> polled_;
  int arrivals_ = 0;
  bool ends_ = false;
};

}  // namespace tutti::ps
