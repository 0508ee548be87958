/// The data links to one peer: messages striped over them, one at a time in each direction.
/// Thread rule: one thread.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/comm/tcp/frame.h"
#include "tutti/net/link.h"

namespace tutti::detail::tcp {

/// Of a cache line: stripes and pieces begin on one, a multiple of every element.
constexpr int64_t kLineBytes = 64;

/// Thrown by PeerStreams::receive: a frame of another call than the one that is expected.
struct UnexpectedFrame {
  FrameHeader got;
  int64_t expected_length;
};

/// Thrown when bytes are no frame: `why` has got and expected.
struct BadFrame {
  std::string why;
};

/// Frames of a link, read through a small buffer, so that a short one costs one system call.
/// `read(to, bytes)` gives what is there now.
class ReadAhead {
 public:
  /// True once all of the next header is there. Throws BadFrame.
  template <class Read>
  bool header(FrameHeader& header, const Read& read) {
    if (end_ - begin_ < kHeaderBytes) {
      std::memmove(stage_.get(), stage_.get() + begin_, static_cast<size_t>(end_ - begin_));
      end_ -= std::exchange(begin_, 0);
      end_ += read(stage_.get() + end_, kStageBytes - end_);
      if (end_ < kHeaderBytes) return false;
    }
    const std::span<const std::byte, kHeaderBytes> at(stage_.get() + begin_, kHeaderBytes);
    if (std::string why = decode_header(at, header); !why.empty()) throw BadFrame{std::move(why)};
    begin_ += kHeaderBytes;
    return true;
  }

  /// Up to `bytes`, from what was read ahead first; 0 when nothing is there.
  template <class Read>
  int64_t take(std::byte* to, int64_t bytes, const Read& read) {
    const int64_t staged = std::min(bytes, end_ - begin_);
    if (staged == 0) return read(to, bytes);
    std::memcpy(to, stage_.get() + begin_, static_cast<size_t>(staged));
    begin_ += staged;
    return staged;
  }

  /// Whether so many bytes were read ahead.
  bool has(int64_t bytes) const noexcept { return end_ - begin_ >= bytes; }

 private:
  static constexpr int64_t kStageBytes = 4096;
  std::unique_ptr<std::byte[]> stage_ = std::make_unique<std::byte[]>(kStageBytes);
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

/// Where a message goes: put at `to`, or combined with `operand` into `to`, chunk by chunk.
struct Sink {
  std::byte* to = nullptr;
  const std::byte* operand = nullptr;  ///< null: put
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int replicas = 0;  ///< nonzero: the sum is complete, of so many; a mean is divided
};

class PeerStreams {
 public:
  PeerStreams() = default;
  PeerStreams(std::vector<std::unique_ptr<Link>> links, int64_t min_stripe_bytes,
              int64_t chunk_bytes);

  /// Begins a message; none may be under way in that direction. `header` without its length.
  void start_send(const std::byte* from, int64_t bytes, const FrameHeader& header);
  /// `expected`: the header that must come, but for its length. `alignment`: bytes of an element.
  void start_receive(const Sink& sink, int64_t bytes, const FrameHeader& expected);
  bool sending() const noexcept { return sending_ > 0; }
  bool receiving() const noexcept { return receiving_ > 0; }

  /// Move what goes now; true when something moved. Throw what Link does, BadFrame,
  /// UnexpectedFrame.
  bool send();
  bool receive();

  /// The header of a frame that has come and that nobody expects yet, if any; takes it in without
  /// its bytes. Throws as receive().
  std::optional<FrameHeader> unclaimed();

  /// A wait for the messages under way goes on once so much of one is there, or all that is left.
  void gather(int64_t bytes);
  /// Adds what a wait for the messages under way has to watch.
  void add_polls(std::vector<pollfd>& polls) const;
  /// Bytes wait inside a link, unseen by poll(2).
  bool has_buffered() const noexcept;
  int num_links() const noexcept { return static_cast<int>(links_.size()); }

 private:
  struct DataLink {
    std::unique_ptr<Link> link;

    bool sends = false;
    std::byte out_header[kHeaderBytes]{};
    const std::byte* out = nullptr;
    int64_t out_bytes = 0;
    int64_t out_done = 0;  ///< header included

    bool receives = false;
    bool has_header = false;
    FrameHeader header{};
    int64_t in_offset = 0;  ///< of this stripe in the message
    int64_t in_bytes = 0;
    int64_t in_done = 0;
    int64_t chunk_fill = 0;  ///< received, not combined yet
    std::unique_ptr<std::byte[]> chunk;
    ReadAhead ahead;
  };

  int stripes_of(int64_t bytes) const;
  bool send_on(DataLink& d);
  bool receive_on(DataLink& d);
  bool read_header(DataLink& d);
  bool read_payload(DataLink& d);
  void check(const DataLink& d) const;
  void combine(DataLink& d);

  std::vector<DataLink> links_;
  int64_t min_stripe_bytes_ = 0;
  int64_t chunk_bytes_ = 0;
  int sending_ = 0;    ///< links with a stripe that is not all written
  int receiving_ = 0;  ///< links with a stripe that is not all read
  Sink sink_{};
  FrameHeader expected_{};
};

}  // namespace tutti::detail::tcp
