/// The control links to all peers: frames out in order, frames in to a handler.
///
/// Everything is nonblocking. Thread rule: one thread calls everything but tell_all() and
/// flush(), which may come from any thread; the handler is called in the thread that calls
/// service().
#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/tcp/frame.h"
#include "tutti/comm/tcp/streams.h"
#include "tutti/net/link.h"

namespace tutti::detail::tcp {

/// What the control links report to.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  /// Where the bytes of a `part` go, header.length of them; null: nobody waits for it.
  virtual std::byte* room_for(int from, const FrameHeader& header) = 0;
  /// A whole frame. `payload` is empty for a part, whose bytes are in their room.
  virtual void on_frame(int from, const FrameHeader& header,
                        std::span<const std::byte> payload) = 0;
  /// A frame that was pushed with `message` != 0 is written: its bytes may be reused.
  virtual void on_written(int to, uint64_t message) = 0;
};

class ControlLinks {
 public:
  /// One link a rank, null at this rank's own place.
  ControlLinks(std::vector<std::unique_ptr<Link>> links, ControlHandler& handler);

  /// Queues a frame, and writes what goes. `payload` (header.length bytes) stays the caller's until
  /// on_written(to, message).
  void push(int to, const FrameHeader& header, const std::byte* payload = nullptr,
            uint64_t message = 0);

  /// Reads and writes what goes now, on the links of ranks [0, size). Does not throw for lost
  /// peers: they are marked.
  void service();
  /// The same for one rank.
  void service(int rank);
  /// The same for those that poll(2) found ready: `polls` as add_polls() left them.
  void service_ready(std::span<const pollfd> polls);

  /// Ends what was queued and sends `header` and `text` to all, as far as it goes now. From any
  /// thread. A frame that is half written is filled up with zeros, so that its bytes may be freed.
  void tell_all(const FrameHeader& header, std::string_view text) noexcept;
  /// Writes what is left of it, until peers have taken nothing for `quiet`: a busy machine may let
  /// a peer read late, and a stopped one never does. 20 times as long at most. From any thread.
  void flush(Millis quiet) noexcept;
  /// Reads and forgets what has come: closing a socket with unread bytes would reset it, and take
  /// what is on its way to the peer.
  void drain() noexcept;

  /// Adds what a wait has to watch: all links that are open.
  void add_polls(std::vector<pollfd>& polls);
  bool has_buffered();

  enum class State : uint8_t { open, left, lost };
  State state(int rank) const { return peers_[static_cast<size_t>(rank)].state; }
  /// Its stream has ended, in order or not.
  bool closed(int rank) const { return peers_[static_cast<size_t>(rank)].closed; }
  /// A rank that is lost, or -1; why in words.
  int lost_rank() const noexcept { return lost_rank_; }
  const std::string& why_lost() const noexcept { return why_lost_; }
  /// "rank 3 (10.0.0.7:41023)".
  const std::string& name(int rank) const { return peers_[static_cast<size_t>(rank)].name; }

 private:
  struct OutFrame {
    std::byte header[kHeaderBytes]{};
    const std::byte* payload = nullptr;  ///< null: `text`
    std::string text{};
    int64_t bytes = 0;
    int64_t written = 0;  ///< header included
    uint64_t message = 0;
  };

  struct Peer {
    std::unique_ptr<Link> link;
    std::string name;
    std::deque<OutFrame> out;
    State state = State::open;
    bool closed = false;

    ReadAhead ahead;
    bool has_header = false;
    FrameHeader header{};
    std::vector<std::byte> payload;
    std::byte* room = nullptr;
    int64_t received = 0;
  };

  void read(int rank);
  bool read_frame(int rank);
  void begin_payload(int rank);
  void write(int rank, bool report);
  int64_t bytes_left();
  void lose(int rank, const std::string& why);
  OutFrame make_frame(const FrameHeader& header, const std::byte* payload, uint64_t message) const;
  void fill_up(OutFrame& frame) const;

  ControlHandler& handler_;
  // Held while frames are queued or written, and while a half written one is given up.
  std::mutex mutex_;
  std::vector<Peer> peers_;
  bool told_ = false;     ///< tell_all() was called: nothing else is queued any more
  bool writing_ = false;  ///< the handler is being told of a frame that was written
  int lost_rank_ = -1;
  std::string why_lost_;
};

}  // namespace tutti::detail::tcp
