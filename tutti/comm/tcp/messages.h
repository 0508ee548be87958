/// send and recv: messages between two ranks, matched by sender and tag, in order within these.
///
/// Short ones go at once, as long as the receiver's room for them (kCredit a sender) lasts, and are
/// kept there; others are announced, and sent when their receiver has named the place for them.
/// Thread rule: one thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/comm/tcp/control.h"

namespace tutti::detail::tcp {

/// Thrown when a message and its recv disagree about the length; words for the reader.
struct WrongLength {
  std::string text;
};

class Messages {
 public:
  Messages(int size, ControlLinks& control);

  /// Begin a message. `batch` names those that are submitted together.
  void post_send(const Operation& operation, uint64_t batch, uint64_t number);
  void post_recv(const Operation& operation, uint64_t batch, uint64_t number);

  /// No message of `batch` is under way any more.
  bool done(uint64_t batch) const noexcept;
  bool idle() const noexcept { return sends_.empty() && recvs_.empty(); }

  /// Frames of the control links; others are ignored.
  void on_frame(int from, const FrameHeader& header, std::span<const std::byte> payload);
  std::byte* room_for(int from, const FrameHeader& header);
  void on_written(int to, uint64_t message);

  /// The message whose limit has passed first, if any.
  struct Late {
    Collective collective;
    int peer;
    int tag;
    uint64_t number;
    Millis limit;
  };
  std::optional<Late> late(TimePoint now) const;
  /// The earliest limit; TimePoint::max() when none is under way.
  TimePoint next_deadline() const noexcept;
  /// Any message of `batch` that is under way.
  std::optional<Late> pending(uint64_t batch) const;

  /// A message that is under way with a rank that has gone, if any.
  std::optional<Late> cut_off() const;

  /// Bytes of short messages that a rank may have at one other, unread.
  static constexpr int64_t kCredit = 1 << 20;

 private:
  struct Send {
    uint64_t id;
    uint64_t batch;
    uint64_t number;
    int to;
    int tag;
    const std::byte* data;
    int64_t bytes;
    int64_t pushed;  ///< of a long one, in parts
    TimePoint deadline;
    Millis limit;
  };
  struct Recv {
    uint64_t batch;
    uint64_t number;
    int from;  ///< kAnyRank until a message is found
    int tag;
    std::byte* data;
    int64_t bytes;
    int* source;
    TimePoint deadline;
    Millis limit;
    bool granted = false;  ///< a long one is on its way
    uint64_t id = 0;
    int64_t received = 0;
  };
  struct Arrived {
    int from;
    int tag;
    int64_t bytes;
    bool announced;
    uint64_t id;
    std::vector<std::byte> data;
  };

  void arrive(Arrived arrived);
  bool match(Recv& recv, Arrived& arrived);
  void push_part(Send& send);
  void give_credit(int to, int64_t bytes);
  Recv* granted(int from, uint64_t id);
  std::vector<std::byte> kept_buffer(std::span<const std::byte> bytes);
  static Late late_of(const Send& send);
  static Late late_of(const Recv& recv);

  ControlLinks& control_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  std::deque<Arrived> arrived_;
  std::vector<std::vector<std::byte>> spare_;  ///< buffers of messages that were taken
  std::vector<int64_t> credit_;                ///< bytes that may still be sent unasked, by rank
  std::vector<int64_t> owed_;                  ///< bytes taken and not yet reported, by rank
  uint64_t next_id_ = 1;
};

}  // namespace tutti::detail::tcp
