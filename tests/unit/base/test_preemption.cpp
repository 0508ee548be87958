// Who asks a process to end: a signal, a file, its time.
#include <csignal>

#include "tutti/base/error.h"
#include "tutti/base/preemption.h"
#include "tutti/base/stop.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::TempFolder;

TEST(Preemption, NobodyAsks) {
  const PreemptionHandler handler({.signals = false});
  EXPECT_EQ(handler.asked(), 0);
  EXPECT_EQ(handler.why(), "");
}

TEST(Preemption, ASignalAsks) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const PreemptionHandler handler;
    EXPECT_EQ(handler.asked(), 0);
    ::raise(signal);
    EXPECT_EQ(handler.asked(), signal);
    EXPECT_EQ(handler.why(), signal == SIGTERM ? "SIGTERM" : "SIGINT");
    // Those that somebody else has taken over ask, too.
    EXPECT_EQ(PreemptionHandler({.signals = false}).asked(), signal);
    remove_stop_handler();
  }
}

TEST(Preemption, AFileAsksThatIsThereAndStaysAsked) {
  const TempFolder folder;
  test::put_bytes(folder / "stop", "");
  const PreemptionHandler handler({.signals = false, .file = folder / "stop"});
  EXPECT_EQ(handler.asked(), SIGTERM);
  EXPECT_EQ(handler.why(), "file " + (folder / "stop").string());
  std::filesystem::remove(folder / "stop");
  EXPECT_EQ(handler.asked(), SIGTERM);
}

TEST(Preemption, AFileIsFoundThatComesLater) {
  const TempFolder folder;
  const PreemptionHandler handler({.signals = false, .file = folder / "stop"});
  EXPECT_EQ(handler.asked(), 0);
  test::put_bytes(folder / "stop", "");
  for (const Deadline soon(Millis{20'000}); handler.asked() == 0;) ASSERT_FALSE(soon.passed());
}

TEST(Preemption, TimeAsksOnceItIsUp) {
  EXPECT_EQ(PreemptionHandler({.signals = false, .after = Millis{3'600'000}}).asked(), 0);
  const PreemptionHandler handler({.signals = false, .after = Millis{1}});
  for (const Deadline soon(Millis{20'000}); handler.asked() == 0;) ASSERT_FALSE(soon.passed());
  EXPECT_EQ(handler.why(), "the end of its 0.001 s");
  EXPECT_THAT(message_of<UsageError>([] { PreemptionHandler({.after = Millis{-1}}); }),
              HasSubstr("after is -1 ms"));
}

}  // namespace
}  // namespace tutti
