#include "tutti/comm/tcp/frame.h"

#include <fmt/format.h>

#include <numeric>

namespace tutti::detail::tcp {
namespace {

constexpr uint32_t kMagic = 0x3174'7475;  // "utt1", the version included

// Little-endian on the wire, whatever the machine.
template <class T>
void put(std::byte*& at, T value) noexcept {
  for (size_t i = 0; i < sizeof(T); ++i)
    *at++ = static_cast<std::byte>(static_cast<uint64_t>(value) >> 8 * i);
}

template <class T>
T take(const std::byte*& at) noexcept {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(*at++) << 8 * i;
  return static_cast<T>(value);
}

int64_t most_bytes(FrameKind kind) {
  switch (kind) {
    case FrameKind::data: return kMostBytes;
    case FrameKind::message: return kShortMessageBytes;
    case FrameKind::part: return kMessagePartBytes;
    case FrameKind::failure: return kFailureTextBytes;
    default: return 0;
  }
}

}  // namespace

void encode_header(const FrameHeader& header, std::span<std::byte, kHeaderBytes> to) noexcept {
  std::byte* at = to.data();
  put(at, kMagic);
  put(at, static_cast<uint32_t>(header.kind));
  put(at, header.call);
  put(at, header.aux);
  put(at, header.number);
  put(at, header.elements);
  put(at, header.length);
}

std::string decode_header(std::span<const std::byte, kHeaderBytes> from, FrameHeader& header) {
  const std::byte* at = from.data();
  if (const auto magic = take<uint32_t>(at); magic != kMagic)
    return fmt::format("a frame begins with 0x{:08x}; expected 0x{:08x}", magic, kMagic);
  const auto kind = take<uint32_t>(at);
  if (kind < static_cast<uint32_t>(FrameKind::data) ||
      kind > static_cast<uint32_t>(FrameKind::answer))
    return fmt::format("a frame of kind {}; expected 1 to {}", kind,
                       static_cast<int>(FrameKind::answer));
  header.kind = static_cast<FrameKind>(kind);
  header.call = take<uint32_t>(at);
  header.aux = take<uint32_t>(at);
  header.number = take<uint64_t>(at);
  header.elements = take<int64_t>(at);
  header.length = take<uint64_t>(at);
  if (header.elements < 0 || header.elements > kMostBytes)
    return fmt::format("a frame of kind {} counts {} elements; expected 0 to 2^50", kind,
                       header.elements);
  if (header.length > static_cast<uint64_t>(most_bytes(header.kind)))
    return fmt::format("a frame of kind {} has {} bytes; expected at most {}", kind, header.length,
                       most_bytes(header.kind));
  return {};
}

int64_t call_elements(const Operation& operation, int size) noexcept {
  const auto whole = [&](const std::vector<int64_t>& counts, const MemorySpan& part) {
    return counts.empty() ? part.num_elements * size
                          : std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  switch (operation.collective) {
    case Collective::reduce_scatter: return operation.input.num_elements;
    case Collective::all_gather: return operation.output.num_elements;
    case Collective::scatter: return whole(operation.input_counts, operation.output);
    case Collective::gather: return whole(operation.output_counts, operation.input);
    // With counts of its own each rank has another number.
    case Collective::all_to_all:
      return operation.input_counts.empty() ? operation.input.num_elements : 0;
    default: return operation.output.num_elements;
  }
}

}  // namespace tutti::detail::tcp
