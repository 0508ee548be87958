/// Records of TensorFlow's files: bytes with a length and checksums around them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::detail {

/// CRC-32C (Castagnoli, RFC 3720 B.4), which is not the CRC-32 of zlib.
uint32_t crc32c(std::string_view bytes) noexcept;

/// `data` as a record: its length in 8 bytes and their checksum, the data and its checksum; all
/// little-endian, checksums masked as TensorFlow does.
std::string record_of(std::string_view data);

}  // namespace tutti::detail
