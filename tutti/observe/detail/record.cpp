#include "tutti/observe/detail/record.h"

#include <array>
#include <bit>

namespace tutti::detail {
namespace {

// What each value of a byte does to the remainder. The polynomial 0x1EDC6F41, lowest bit first.
constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = remainder;
  }
  return table;
}();

// A checksum of bytes that hold their own checksum is a constant; masked ones do not meet that.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

template <class T>
void add_little_endian(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof value; ++i)
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) noexcept {
  uint32_t remainder = ~0u;
  for (const char byte : bytes)
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~remainder;
}

std::string record_of(std::string_view data) {
  std::string record;
  record.reserve(data.size() + 16);
  add_little_endian(record, static_cast<uint64_t>(data.size()));
  add_little_endian(record, masked(crc32c(record)));
  record += data;
  add_little_endian(record, masked(crc32c(data)));
  return record;
}

}  // namespace tutti::detail
