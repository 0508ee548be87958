#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

#include "tutti/base/crc32c.h"

namespace tutti {
namespace {

TEST(Crc32c, ChecksumsAreThoseOfRfc3720) {
  std::string rising(32, 0);
  std::iota(rising.begin(), rising.end(), '\0');
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
}

// Bit by bit, as the polynomial says.
uint32_t slowly(const std::string& bytes) {
  uint32_t remainder = ~0u;
  for (const char byte : bytes) {
    remainder ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~remainder;
}

TEST(Crc32c, OfEveryLengthAndInTwoPieces) {
  std::mt19937 random(3720);
  std::string bytes;
  for (int length = 0; length < 70; ++length) {
    EXPECT_EQ(crc32c(bytes), slowly(bytes)) << length;
    const std::string_view all = bytes;
    for (size_t cut = 0; cut <= all.size(); ++cut)
      EXPECT_EQ(crc32c(all.substr(cut), crc32c(all.substr(0, cut))), crc32c(all));
    bytes.push_back(static_cast<char>(random()));
  }
}

}  // namespace
}  // namespace tutti
