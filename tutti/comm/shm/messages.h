/// Messages of the shm engine: send and recv beside the collectives.
///
/// Each ordered pair of ranks that talks has a *channel*: a ring of bytes with one writer and one
/// reader. A *frame* in it is a header, and its data if any. Whoever is in any call drains its
/// channels: a short message goes into the room of its recv, or into memory of this rank's own
/// until asked for. Of a long one only the header comes; the receiver copies it where it lies when
/// it can see that memory, else grants it, and the sender passes it through the channel. So
/// channels always move on. docs/design/shm_engine.md has more. Thread rule: as ShmEngine.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/comm/shm/segment.h"

namespace tutti::detail {

class ShmEngine;

class ShmMessages {
 public:
  /// Tickets of messages have this bit; those of collectives do not.
  static constexpr Ticket kBit = Ticket{1} << 63;

  explicit ShmMessages(ShmEngine& engine);

  Ticket submit(std::span<const Operation> batch);
  bool done(Ticket ticket) const { return !batches_.contains(ticket); }

  /// Takes what has come and gives what there is room for; true when something moved.
  bool advance();
  /// Whether a peer has written or read something since the last advance().
  bool called() const { return doorbell_.value() != heard_; }
  /// Whether messages have been used at all.
  bool in_use() const { return next_ticket_ != kBit || doorbell_.value() != 0; }
  /// Whether a peer may still read memory of a send.
  bool sending() const { return !sends_.empty(); }

  /// True when a peer has done something meanwhile.
  bool spin(const WaitPolicy& policy) const { return doorbell_.spin_until(heard_ + 1, policy); }
  /// Sleeps until a peer does something, or `limit` passes.
  void sleep(Millis limit) { doorbell_.sleep_until(heard_ + 1, limit); }
  /// Fails the group when a limit of `ticket` has passed, or `outer`. The time left.
  Millis look_at_limits(Ticket ticket, const Deadline* outer);
  /// The same when a rank that it needs is gone.
  void look_for_lost(Ticket ticket);
  /// Whom the first pending operation of `ticket` needs.
  int awaited(Ticket ticket) const;
  /// "recv from rank 2, tag 5" for the first pending operation of `ticket`.
  std::string words(Ticket ticket) const;
  /// Of one channel, in the segment's file.
  static int64_t channel_bytes();

 private:
  struct Channel;

  struct Frame {
    enum Kind : uint32_t {
      is_short,  ///< a whole message, its data behind this
      is_long,   ///< the announcement of one
      granted,   ///< to the sender of a long one: its data is wanted in the channel
      data,      ///< some of it
      taken,     ///< to the sender of a long one: it was copied where it lies
    };
    uint32_t kind;
    int32_t tag;
    int64_t bytes;  ///< of the message; of `data`: behind this frame
    uint64_t id;
    uint64_t place;
  };

  struct Pending {
    Operation operation;
    Ticket ticket = 0;
    TimePoint deadline;
    uint64_t id = 0;  ///< of a send: unique among those of this rank; of a granted recv: its send's
    int from = kAnyRank;   ///< of a recv that has found its message
    int64_t received = 0;  ///< bytes of a granted recv
  };

  // A message that came before its recv.
  struct Arrived {
    int from = 0;
    int tag = 0;
    int64_t bytes = 0;
    uint64_t id = 0;     ///< of a long one
    uint64_t place = 0;  ///< of a long one: where peers see it, 0 where they do not
    bool is_long = false;
    std::vector<std::byte> data;
  };

  // Frames on their way to a channel. A stream is cut into frames as there is room.
  using PendingList = std::list<Pending>;
  struct Outgoing {
    Frame frame;
    const std::byte* data = nullptr;
    int64_t left = 0;  ///< bytes of data not yet in the channel
    /// Where set, `operation` in it is done once all is in the channel.
    PendingList* completes = nullptr;
    PendingList::iterator operation{};
  };

  struct Peer {
    Channel* in = nullptr;
    Channel* out = nullptr;
    std::deque<Outgoing> queue;
  };

  Channel& open_channel(int to);
  bool flush(int to);
  bool drain(int from);
  void handle(int from, const Frame& frame, const Channel& channel, uint32_t unit);
  void enqueue(int to, const Outgoing& outgoing);
  void take_message(int from, const Frame& frame, const Channel& channel, uint32_t unit);
  void post_send(PendingList::iterator send);
  void post_receive(PendingList::iterator receive);
  PendingList::iterator receive_for(int from, int tag);
  void accept(PendingList::iterator receive, Arrived message);
  void complete(PendingList& list, PendingList::iterator done);
  void check_length(const Pending& receive, int from, int64_t bytes);
  const Pending* first_of(Ticket ticket) const;
  std::string loss_of_any() const;
  std::string silent_words(int rank) const;
  std::string words_of(const Operation& operation) const;

  ShmEngine& engine_;
  ShmSegment::State& state_;
  Flag& doorbell_;  ///< rung by every peer that writes into or reads from a channel of this rank
  uint32_t heard_ = 0;
  std::vector<Peer> peers_;
  int queues_ = 0;  ///< that are not empty
  PendingList sends_, receives_;
  std::deque<Arrived> arrived_;
  std::map<Ticket, int64_t> batches_;  ///< operations left of each
  Ticket next_ticket_ = kBit;
  uint64_t next_id_ = 0;
};

}  // namespace tutti::detail
