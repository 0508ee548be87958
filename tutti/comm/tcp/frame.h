/// Frames: what travels over the links of the tcp engine. A header of 40 bytes, then `length`
/// bytes. Pure functions on bytes; every field of a header is checked before anything follows from
/// it. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/comm/engine/engine.h"

namespace tutti::detail::tcp {

enum class FrameKind : uint8_t {
  data = 1,  ///< a stripe of a collective's message (data links; all others: control links)
  message,   ///< a short message, whole
  announce,  ///< a long message is ready: `number` its id, `elements` its bytes
  grant,     ///< its receiver has room: send it
  part,      ///< a piece of it
  credit,    ///< `elements` bytes of short messages were taken by their receiver
  failure,   ///< the group has failed: `aux` a FailureKind, then its words
  leave,     ///< this rank needs nothing more
  ask,       ///< what are you doing? Sent when a limit has passed
  answer,    ///< `number`, `call`, `elements`: the operation it is at; `aux` 1: is in it
};

struct FrameHeader {
  FrameKind kind = FrameKind::data;
  uint32_t call = 0;     ///< data, answer: as pack_call(); message, announce: the tag
  uint32_t aux = 0;      ///< data: fingerprint of the options; failure: the kind; answer: flags
  uint64_t number = 0;   ///< data, answer: of the operation; announce, grant, part: of the message
  int64_t elements = 0;  ///< data, answer: of the call; announce, credit: bytes
  uint64_t length = 0;   ///< bytes that follow
};

constexpr int64_t kHeaderBytes = 40;
constexpr int64_t kShortMessageBytes = 64 << 10;  ///< up to here a message is sent unasked
constexpr int64_t kMessagePartBytes = 256 << 10;  ///< so that a failure never waits behind more
constexpr int64_t kFailureTextBytes = 4 << 10;
constexpr int64_t kMostBytes = int64_t{1} << 50;

void encode_header(const FrameHeader& header, std::span<std::byte, kHeaderBytes> to) noexcept;

/// Reads a header. Returns "" or, when it is none, why: what was got and expected. `header` is then
/// unspecified. Lengths are within the bounds of the kind.
std::string decode_header(std::span<const std::byte, kHeaderBytes> from, FrameHeader& header);

/// Of a call: what two ranks can compare, and the schedule is made for.
int64_t call_elements(const Operation& operation, int size) noexcept;

}  // namespace tutti::detail::tcp
