/// Frames of TensorFlow's record files: bytes with a length and checksums around them.
///
///   length of the data, 8 bytes | masked CRC-32C of these 8 | data | masked CRC-32C of the data
///
/// Numbers are little-endian. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::data::detail {

inline constexpr int64_t kFrameHeadBytes = 12;
inline constexpr int64_t kFrameTailBytes = 4;

/// The length that a head of kFrameHeadBytes says; nothing when its checksum is wrong.
std::optional<uint64_t> frame_length(std::string_view head) noexcept;

/// Whether the last kFrameTailBytes are the checksum of what stands before them.
bool frame_is_sound(std::string_view data_and_tail) noexcept;

/// By what the file of records is packed that begins so: "gzip", "zlib" or "". One may begin with
/// the two bytes that tell these, its first length: where its head is sound it is not packed, and
/// what zlib packs begins with a sound head once it is unpacked.
std::string_view packing_of_records(std::string_view front);

void append_record(std::string& file, std::string_view data);
std::string record_of(std::string_view data);

}  // namespace tutti::data::detail
