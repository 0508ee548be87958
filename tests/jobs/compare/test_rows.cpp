// The rows of tutti_bench compare, and what its programs stand in.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "bench/compare/checkout.h"
#include "bench/compare/compare.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::bench {
namespace {

TEST(BenchCompare, RowsAreThoseOfTheDesign) {
  const auto subjects = subjects_for({"wide"});
  ASSERT_EQ(subjects.size(), 2u);
  EXPECT_EQ(subjects[0].batch, 64);
  EXPECT_EQ(subjects[1].batch, 32);
  for (const Subject& subject : subjects_for({"mlp", "cnn", "wide"}))
    for (const Claim& claim : subject.claims) EXPECT_LE(claim.bound, claim.aim) << claim.theirs;
  EXPECT_THAT(message_of<UsageError>([] { subjects_for({"wdie"}); }),
              HasSubstr("did you mean \"wide\"?"));
}

TEST(BenchCompare, EveryModelIsHeldAgainstEveryKindOfPeer) {
  for (const char* model : {"mlp", "cnn", "wide"}) {
    const auto subjects = subjects_for({model});
    std::set<std::string> theirs;
    for (const Claim& claim : subjects.at(0).claims) theirs.insert(claim.theirs);
    EXPECT_THAT(
        theirs,
        IsSupersetOf({"PyTorch, 2 threads", "PyTorch, 2 that never talk", "PyTorch DDP, Gloo",
                      "PyTorch compiled, 2 threads", "PyTorch compiled, DeepSpeed", "JAX, 2 cores",
                      "JAX, 2 devices", "JAX, 2 that never talk", "ours, 2 that never talk"}))
        << model;
  }
}

TEST(BenchCompare, TheBestOfPeersIsTheFastestAtEachSize) {
  EXPECT_EQ(best_of({}), Times{});
  EXPECT_EQ(best_of({{{8, 3.0}, {64, 5.0}}, {{8, 4.0}, {64, 2.0}}, {{64, 9.0}}}),
            (Times{{8, 3.0}, {64, 2.0}}));
}

TEST(BenchPeers, OfWhatIsLeftOutTheLastLineIsTold) {
  testing::internal::CaptureStdout();
  say_left_out("JAX", Error("python x.py exited with code 1\nTraceback\nno JAX in .venv\n"));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "JAX is left out: no JAX in .venv\n");
}

TEST(ScratchFiles, LieInAFolderThatIsThisUsersAlone) {
  namespace fs = std::filesystem;
  fs::path folder;
  {
    const ScratchFile one, another;
    folder = fs::path(one.path()).parent_path();
    EXPECT_NE(folder, fs::path(another.path()).parent_path());
    EXPECT_FALSE(fs::exists(one.path()));
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
    std::ofstream(one.path()) << "program";
  }
  EXPECT_FALSE(fs::exists(folder));
}

TEST(Checkouts, OfOtherUsersAreNotTaken) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path() / "bench/peer");
  std::filesystem::create_directories(folder.path() / "a/b");
  put_bytes(folder / "bench/peer/step.py", "print()");
  const uint32_t own = geteuid();
  EXPECT_EQ(checkout_above(folder.path() / "a/b", {own}), folder.path());
  EXPECT_EQ(checkout_above(folder.path(), {own + 1, own}), folder.path());
  EXPECT_EQ(checkout_above(folder.path() / "a/b", {own + 1}), "");
}

}  // namespace
}  // namespace tutti::bench
