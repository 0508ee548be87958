/// FrameStream: messages of a parameter server over a Link, their payloads as bytes or, between
/// processes that have mapped each other's SharedHeap, as a place in memory. Never waits.
///
/// A payload that goes by place is kept by its sender until the receiver drops the last copy of it,
/// in whatever thread; a frame says so to the sender. When the connection is gone the sender lets
/// go of everything at once, and may write there again: who uses such a payload after an error of
/// its stream must not trust what it reads.
/// Thread rule: one thread at a time; owners of payloads may go in any thread, also after the
/// stream.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/net/link.h"
#include "tutti/ps/wire/message.h"
#include "tutti/ps/wire/shared_heap.h"

namespace tutti::ps {

struct FrameStreamOptions {
  int64_t max_payload_bytes = int64_t{1} << 30;  ///< longer ones are refused, in both directions
  int64_t min_shared_bytes = 4 << 10;  ///< shorter ones go as bytes: that is less work than a place
  std::shared_ptr<SharedHeap> own;     ///< payloads are received into it; needed
  std::shared_ptr<PeerHeap> peer;      ///< as share() takes it
  /// Called when flush() has work that no event of the link announces: a received payload was
  /// dropped. From any thread, never after the stream's destructor; returns at once, does not throw
  /// and does not touch the stream (write to an eventfd).
  std::function<void()> wake;
};

class FrameStream {
 public:
  /// Throws UsageError without a heap or with a limit below 0.
  FrameStream(std::unique_ptr<Link> link, FrameStreamOptions options);
  ~FrameStream();
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  /// Puts a message into the queue; flush() sends it. Of those that wait the lowest `priority` goes
  /// first, of equal ones the first; some 16 KiB of small frames may already have begun. The
  /// payload's bytes stay as they are until its owner is let go; one without an owner must outlive
  /// the stream. Throws UsageError when text or payload are too long.
  void send(Message message, int priority = 0);

  /// Sends what goes; true when nothing waits any more. Throws PeerLost as Link does; messages that
  /// came before can still be received.
  bool flush();

  /// The next whole message; nothing when it has not come yet, or after kReadBytes of it, so that
  /// what is to be sent gets its turn. Throws PeerLost, or Error when a
  /// frame is wrong or own memory has no room for its payload: then the stream is to be given up.
  std::optional<Message> receive();

  /// From now on payloads may come as places of the other side's heap. Before this is told to it.
  void share(std::shared_ptr<PeerHeap> peer);
  /// The other side has mapped our heap: from now on payloads that lie there go as places.
  void lend_own() noexcept { lends_ = true; }

  /// What to wait for with poll(2) on link().descriptor().
  short wants() const noexcept;
  Link& link() const noexcept { return *link_; }

  /// Bytes of messages that have not left yet; payloads that go as places are none.
  int64_t bytes_waiting() const noexcept { return waiting_bytes_ + begun_bytes_; }
  /// Payloads of whole messages, as bytes in the stream and, counted apart, as places.
  int64_t bytes_sent() const noexcept { return bytes_sent_; }
  int64_t bytes_received() const noexcept { return bytes_received_; }
  int64_t shared_bytes_sent() const noexcept { return shared_bytes_sent_; }
  int64_t shared_bytes_received() const noexcept { return shared_bytes_received_; }
  /// Payloads that went as places and that the other side has not let go.
  int64_t payloads_lent() const noexcept { return static_cast<int64_t>(lent_.size()); }

 private:
  class Releases;
  struct Frame {
    std::array<std::byte, kHeadBytes> head;
    std::string text;
    Bytes payload;
    std::optional<int64_t> place;  // none: the payload follows as bytes

    int64_t wire_bytes() const noexcept;
  };
  struct Lent {
    int64_t place = 0;
    std::shared_ptr<const void> owner;
  };
  struct Incoming {
    Message message;
    FrameHead head;
    std::string text;
    size_t text_done = 0;
    std::shared_ptr<std::byte> block;  // of a payload that comes as bytes
    size_t payload_done = 0;
  };

  void enqueue(const Message& message, std::optional<int64_t> place, int priority);
  void queue_releases();
  bool begin_frames();
  size_t gather(std::span<iovec> pieces);
  void drop_sent(int64_t bytes);

  bool have_head();
  void begin_incoming();
  bool read_into(void* to, size_t bytes, size_t& done, size_t most);
  Message finish_incoming();
  Bytes borrow(int64_t place, int64_t bytes);
  void settle(const Message& released);
  [[noreturn]] void wrong(std::string_view words) const;

  const std::unique_ptr<Link> link_;
  FrameStreamOptions options_;
  bool lends_ = false;
  const std::shared_ptr<Releases> releases_;  // payloads that were received have copies

  std::map<int, std::deque<Frame>> waiting_;  // by priority; none of the queues is empty
  int64_t waiting_bytes_ = 0;
  std::deque<Frame> begun_;  // in the order of their bytes, which is settled: see begin_frames()
  int64_t begun_bytes_ = 0;  // of begun_, still to be sent
  int64_t sent_ = 0;         // bytes of begun_.front()
  // Both sides count the frames with a place, from 0: the number stands for the loan.
  int64_t next_lent_ = 0;
  int64_t next_borrowed_ = 0;
  std::map<int64_t, Lent> lent_;

  std::vector<std::byte> input_;  // bytes that came: [input_begin_, input_end_)
  size_t input_begin_ = 0;
  size_t input_end_ = 0;
  std::optional<Incoming> incoming_;

  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
  int64_t shared_bytes_sent_ = 0;
  int64_t shared_bytes_received_ = 0;
};

}  // namespace tutti::ps
