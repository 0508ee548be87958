/// CRC-32C: the checksum of TensorFlow's records and of our index files. Not the CRC-32 of zlib.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

/// Castagnoli's polynomial (RFC 3720 B.4), by the processor's instruction where it has one.
/// `before` is the checksum of the bytes before these: crc32c("ab") == crc32c("b", crc32c("a")).
uint32_t crc32c(std::string_view bytes, uint32_t before = 0) noexcept;

/// As TensorFlow stores it: a checksum of bytes that hold their own checksum is a constant, that of
/// a masked one is not.
uint32_t masked_crc32c(std::string_view bytes) noexcept;

}  // namespace tutti
