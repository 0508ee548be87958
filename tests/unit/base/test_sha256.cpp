#include <gtest/gtest.h>

#include <string>

#include "tutti/base/sha256.h"

namespace tutti {
namespace {

TEST(Sha256, GivesThePublishedDigests) {
  // NIST's examples for FIPS 180-4.
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesDoNotMatter) {
  const std::string text(1000, 'x');
  for (size_t cut : {0, 1, 63, 64, 65, 999, 1000}) {
    Sha256 hash;
    hash.update(text.substr(0, cut));
    hash.update(nullptr, 0);
    hash.update(text.substr(cut));
    EXPECT_EQ(hash.hex(), sha256_hex(text)) << "cut at " << cut;
  }
}

TEST(Sha256, GoesOnAfterHex) {
  Sha256 hash;
  hash.update("a");
  EXPECT_EQ(hash.hex(), sha256_hex("a"));
  EXPECT_EQ(hash.hex(), sha256_hex("a"));
  Sha256 moved = std::move(hash);
  moved.update("bc");
  EXPECT_EQ(moved.hex(), sha256_hex("abc"));
}

}  // namespace
}  // namespace tutti
