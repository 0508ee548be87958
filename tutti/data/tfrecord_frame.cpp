#include "tutti/data/detail/tfrecord_frame.h"

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/data/detail/gzip.h"

namespace tutti::data::detail {
namespace {

template <class T>
void append_little_endian(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof value; ++i)
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
}

template <class T>
T little_endian_at(std::string_view bytes, size_t at) noexcept {
  T value = 0;
  for (size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[at + i])) << (8 * i));
  return value;
}

}  // namespace

std::optional<uint64_t> frame_length(std::string_view head) noexcept {
  if (head.size() != kFrameHeadBytes ||
      little_endian_at<uint32_t>(head, 8) != masked_crc32c(head.substr(0, 8)))
    return std::nullopt;
  return little_endian_at<uint64_t>(head, 0);
}

bool frame_is_sound(std::string_view data_and_tail) noexcept {
  if (data_and_tail.size() < kFrameTailBytes) return false;
  const size_t end = data_and_tail.size() - kFrameTailBytes;
  return little_endian_at<uint32_t>(data_and_tail, end) ==
         masked_crc32c(data_and_tail.substr(0, end));
}

std::string_view packing_of_records(std::string_view front) {
  constexpr auto kHead = static_cast<size_t>(kFrameHeadBytes);
  if (frame_length(front.substr(0, kHead))) return "";
  const std::string_view packing = packing_of(front);
  if (packing != "zlib") return packing;
  try {
    return frame_length(unpacked_front(front, kHead, "")) ? packing : "";
  } catch (const DataError&) {
    return "";
  }
}

void append_record(std::string& file, std::string_view data) {
  const size_t begin = file.size();
  append_little_endian(file, static_cast<uint64_t>(data.size()));
  append_little_endian(file, masked_crc32c(std::string_view(file).substr(begin)));
  file += data;
  append_little_endian(file, masked_crc32c(data));
}

std::string record_of(std::string_view data) {
  std::string record;
  record.reserve(data.size() + kFrameHeadBytes + kFrameTailBytes);
  append_record(record, data);
  return record;
}

}  // namespace tutti::data::detail
