#include "tutti/comm/tcp/streams.h"

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti::detail::tcp {
namespace {

// One call moves at most so much, so that both directions and all peers get their turn.
constexpr int64_t kBytesPerCall = 1 << 20;

auto reader_of(Link& link) {
  return [&link](std::byte* to, int64_t bytes) { return link.read_some(to, bytes); };
}

const ReductionShape& pair_shape() {
  static const ReductionShape shape = ReductionShape::flat(2);
  return shape;
}

}  // namespace

PeerStreams::PeerStreams(std::vector<std::unique_ptr<Link>> links, int64_t min_stripe_bytes,
                         int64_t chunk_bytes)
    : min_stripe_bytes_(min_stripe_bytes), chunk_bytes_(chunk_bytes / kLineBytes * kLineBytes) {
  for (auto& link : links) {
    DataLink d;
    d.link = std::move(link);
    links_.push_back(std::move(d));
  }
}

int PeerStreams::stripes_of(int64_t bytes) const {
  return static_cast<int>(
      std::clamp<int64_t>(bytes / min_stripe_bytes_, 1, static_cast<int64_t>(links_.size())));
}

namespace {

// Bytes [begin, end) of stripe `i` of `stripes`.
std::pair<int64_t, int64_t> stripe(int64_t bytes, int stripes, int i) {
  const int64_t each = (bytes / stripes + kLineBytes - 1) / kLineBytes * kLineBytes;
  return {std::min(bytes, i * each), i + 1 == stripes ? bytes : std::min(bytes, (i + 1) * each)};
}

}  // namespace

void PeerStreams::start_send(const std::byte* from, int64_t bytes, const FrameHeader& header) {
  TUTTI_CHECK(!sending(), "{} stripes under way", sending_);
  sending_ = stripes_of(bytes);
  for (int i = 0; i < sending_; ++i) {
    const auto [begin, end] = stripe(bytes, sending_, i);
    DataLink& d = links_[static_cast<size_t>(i)];
    FrameHeader own = header;
    own.length = static_cast<uint64_t>(end - begin);
    encode_header(own, d.out_header);
    d.sends = true;
    d.out = from + begin;
    d.out_bytes = end - begin;
    d.out_done = 0;
  }
}

void PeerStreams::start_receive(const Sink& sink, int64_t bytes, const FrameHeader& expected) {
  TUTTI_CHECK(!receiving(), "{} stripes under way", receiving_);
  sink_ = sink;
  expected_ = expected;
  receiving_ = stripes_of(bytes);
  for (int i = 0; i < receiving_; ++i) {
    const auto [begin, end] = stripe(bytes, receiving_, i);
    DataLink& d = links_[static_cast<size_t>(i)];
    d.receives = true;
    d.in_offset = begin;
    d.in_bytes = end - begin;
    d.in_done = 0;
    d.chunk_fill = 0;
    if (sink.operand != nullptr && d.chunk == nullptr)
      d.chunk = std::make_unique<std::byte[]>(static_cast<size_t>(chunk_bytes_));
    if (d.has_header) check(d);  // unclaimed() took it in
  }
}

bool PeerStreams::send() {
  bool moved = false;
  for (DataLink& d : links_)
    if (d.sends) moved |= send_on(d);
  return moved;
}

bool PeerStreams::send_on(DataLink& d) {
  const int64_t header_left = std::max(int64_t{0}, kHeaderBytes - d.out_done);
  const int64_t payload_done = std::max(int64_t{0}, d.out_done - kHeaderBytes);
  const int64_t payload = std::min(d.out_bytes - payload_done, kBytesPerCall);
  iovec pieces[2];
  size_t count = 0;
  if (header_left > 0)
    pieces[count++] = {d.out_header + (kHeaderBytes - header_left),
                       static_cast<size_t>(header_left)};
  if (payload > 0)
    pieces[count++] = {const_cast<std::byte*>(d.out + payload_done), static_cast<size_t>(payload)};
  const int64_t wrote = d.link->write_some({pieces, count});
  d.out_done += wrote;
  if (d.out_done == kHeaderBytes + d.out_bytes) {
    d.sends = false;
    --sending_;
  }
  return wrote > 0;
}

bool PeerStreams::receive() {
  bool moved = false;
  for (DataLink& d : links_)
    if (d.receives) moved |= receive_on(d);
  return moved;
}

bool PeerStreams::receive_on(DataLink& d) {
  if (!d.has_header) {
    if (!read_header(d)) return false;
    check(d);
  }
  const bool moved = read_payload(d);
  if (d.in_done == d.in_bytes) {
    if (d.chunk_fill > 0) combine(d);
    d.receives = d.has_header = false;
    --receiving_;
    return true;
  }
  return moved;
}

// True once the whole header is there.
bool PeerStreams::read_header(DataLink& d) {
  if (!d.ahead.header(d.header, reader_of(*d.link))) return false;
  if (d.header.kind != FrameKind::data)
    throw BadFrame{"a frame of the control link on a data link"};
  return d.has_header = true;
}

void PeerStreams::check(const DataLink& d) const {
  const FrameHeader& got = d.header;
  if (got.number != expected_.number || got.call != expected_.call || got.aux != expected_.aux ||
      got.elements != expected_.elements || got.length != static_cast<uint64_t>(d.in_bytes))
    throw UnexpectedFrame{got, d.in_bytes};
}

bool PeerStreams::read_payload(DataLink& d) {
  int64_t moved = 0;
  while (d.in_done < d.in_bytes && moved < kBytesPerCall) {
    const int64_t left = d.in_bytes - d.in_done;
    int64_t got;
    if (sink_.operand == nullptr) {
      got = d.ahead.take(sink_.to + d.in_offset + d.in_done, std::min(left, kBytesPerCall),
                         reader_of(*d.link));
    } else {
      got = d.ahead.take(d.chunk.get() + d.chunk_fill, std::min(left, chunk_bytes_ - d.chunk_fill),
                         reader_of(*d.link));
      d.chunk_fill += got;
    }
    if (got == 0) break;
    moved += got;
    d.in_done += got;
    if (d.chunk_fill == chunk_bytes_) combine(d);
  }
  return moved > 0;
}

// Adds a chunk while it is in cache.
void PeerStreams::combine(DataLink& d) {
  const int64_t offset = d.in_offset + d.in_done - d.chunk_fill;
  const int64_t count = d.chunk_fill / size_of(sink_.dtype);
  std::byte* const to = sink_.to + offset;
  const void* const both[2] = {sink_.operand + offset, d.chunk.get()};
  reduce_inputs(sink_.dtype, partial_op(sink_.op), pair_shape(), both, to, count);
  if (sink_.replicas != 0 && sink_.op == ReduceOp::mean)
    finish_partial(sink_.dtype, sink_.op, to, to, count, sink_.replicas);
  d.chunk_fill = 0;
}

std::optional<FrameHeader> PeerStreams::unclaimed() {
  for (DataLink& d : links_)
    if (!d.receives && (d.has_header || read_header(d))) return d.header;
  return std::nullopt;
}

void PeerStreams::gather(int64_t bytes) {
  for (DataLink& d : links_)
    if (d.receives) d.link->gather(d.has_header ? std::min(bytes, d.in_bytes - d.in_done) : 1);
}

void PeerStreams::add_polls(std::vector<pollfd>& polls) const {
  for (const DataLink& d : links_) {
    short events = 0;
    if (d.sends) events |= d.link->wants_to_write();
    if (d.receives) events |= d.link->wants_to_read();
    if (events != 0) polls.push_back({d.link->descriptor(), events, 0});
  }
}

bool PeerStreams::has_buffered() const noexcept {
  return std::any_of(links_.begin(), links_.end(),
                     [](const DataLink& d) { return d.receives && d.link->has_buffered(); });
}

}  // namespace tutti::detail::tcp
