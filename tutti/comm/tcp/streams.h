/// The data links to one peer: messages striped over them, one at a time in each direction.
/// Thread rule: one thread.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
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

  /// Adds what a wait for the messages under way has to watch.
  void add_polls(std::vector<pollfd>& polls) const;
  /// Bytes wait inside a link, unseen by poll(2).
  bool has_buffered() const noexcept;
  int num_links() const noexcept { return static_cast<int>(links_.size()); }

 private:
  // Frames are read through a small buffer, so that a short one costs one system call.
  static constexpr int64_t kStageBytes = 4096;

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
    std::unique_ptr<std::byte[]> stage;
    int64_t stage_begin = 0;
    int64_t stage_end = 0;
  };

  int stripes_of(int64_t bytes) const;
  bool send_on(DataLink& d);
  bool receive_on(DataLink& d);
  bool read_header(DataLink& d);
  bool read_payload(DataLink& d);
  int64_t take(DataLink& d, std::byte* to, int64_t bytes);
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
