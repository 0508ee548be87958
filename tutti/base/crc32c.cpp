#include "tutti/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tutti {
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

uint32_t by_table(std::string_view bytes, uint32_t remainder) noexcept {
  for (const char byte : bytes)
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<unsigned char>(byte)) & 0xFF];
  return remainder;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(std::string_view bytes,
                                                          uint32_t remainder) noexcept {
  uint64_t wide = remainder;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    wide = _mm_crc32_u64(wide, word);
  }
  return by_table(bytes, static_cast<uint32_t>(wide));
}

const bool kHasInstruction = __builtin_cpu_supports("sse4.2") != 0;
#else
constexpr bool kHasInstruction = false;
constexpr auto by_instruction = by_table;
#endif

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t before) noexcept {
  return ~(kHasInstruction ? by_instruction : by_table)(bytes, ~before);
}

uint32_t masked_crc32c(std::string_view bytes) noexcept {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

}  // namespace tutti
