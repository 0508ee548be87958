// What a manifest says of files and of itself: damage is found, whatever of it is damaged.
#include "tutti/base/file.h"
#include "tutti/store/sealed_json.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::store {
namespace {

TEST(FileFacts, DamageIsSaid) {
  const TempFolder folder;
  const auto write = [&](const char* text) { write_file_atomically(folder / "a", text); };
  const FileFacts facts{"a", 3, sha256_hex("abc")};
  write("abc");
  EXPECT_EQ(damage_of(facts, folder.path()), "");
  write("abcd");
  EXPECT_EQ(damage_of(facts, folder.path()), "has 4 bytes, 3 were written");
  write("abd");
  EXPECT_THAT(damage_of(facts, folder.path()),
              AllOf(StartsWith("has sha256 "), HasSubstr(facts.sha256 + " was written")));
  EXPECT_THROW(damage_of({"b", 3, facts.sha256}, folder.path()), Error);
}

TEST(FileFacts, ADigestHas64HexDigitsInLowerCase) {
  EXPECT_TRUE(is_sha256(sha256_hex("abc")));
  EXPECT_FALSE(is_sha256(""));
  EXPECT_FALSE(is_sha256(std::string(63, 'a')));
  EXPECT_FALSE(is_sha256(std::string(64, 'A')));
  EXPECT_FALSE(is_sha256(std::string(64, 'g')));
}

template <class J>
class SealedJson : public ::testing::Test {};
using Kinds = ::testing::Types<Json, OrderedJson>;
TYPED_TEST_SUITE(SealedJson, Kinds);

TYPED_TEST(SealedJson, EveryChangeBreaksTheSeal) {
  TypeParam manifest = {{"step", 3}, {"files", {json_of<TypeParam>({"a", 3, "0"})}}};
  TypeParam good = sealed(sealed(manifest));
  TypeParam step = good, bytes = good, seal = good;
  step["step"] = "x";
  bytes["files"][0]["bytes"] = "x";
  seal["sha256"] = "x";
  for (TypeParam* changed : {&step, &bytes, &seal})
    EXPECT_THAT(take_seal(*changed), StartsWith("its values have sha256 "));
  EXPECT_EQ(take_seal(good), "");
  EXPECT_EQ(good, manifest);
  EXPECT_THROW(take_seal(good), JsonError);
}

}  // namespace
}  // namespace tutti::store
