// When a replica's threads are said to wait for cores: of wall and CPU time alone.
#include "tutti/train/fit/detail/core_watch.h"

#include "tests/support/expect.h"

namespace tutti::detail {
namespace {

TEST(CoreWatch, SaysSoWhereStepsTakeManyTimesTheirCpuTime) {
  struct Case {
    const char* name;
    double wall, cpu;
    int threads;
    bool said;
  };
  const Case cases[] = {
      {.name = "two threads at work", .wall = 1.0, .cpu = 2.0, .threads = 2, .said = false},
      {.name = "one of two waits", .wall = 1.0, .cpu = 1.0, .threads = 2, .said = false},
      {.name = "half of a core", .wall = 2.0, .cpu = 1.0, .threads = 2, .said = false},
      {.name = "three times", .wall = 3.0, .cpu = 1.0, .threads = 2, .said = false},
      {.name = "more than that", .wall = 3.1, .cpu = 1.0, .threads = 2, .said = true},
      {.name = "measured, with 12 programs on 2 cores",
       .wall = 434.2,
       .cpu = 21.3,
       .threads = 2,
       .said = true},
      {.name = "many threads", .wall = 1.5, .cpu = 0.1, .threads = 64, .said = true},
      {.name = "one thread is the cure", .wall = 45.3, .cpu = 2.8, .threads = 1, .said = false},
      {.name = "too short to say", .wall = 0.9, .cpu = 0.01, .threads = 2, .said = false},
      {.name = "no clock", .wall = 9.0, .cpu = 0.0, .threads = 2, .said = false},
  };
  for (const Case& c : cases)
    EXPECT_EQ(waits_for_cores(c.wall, c.cpu, c.threads).empty(), !c.said) << c.name;
}

TEST(CoreWatch, NamesBothTimesAndTheCure) {
  EXPECT_THAT(waits_for_cores(8.0, 0.5, 4),
              AllOf(HasSubstr("16 times their CPU time (8.00 s for 0.50 s)"),
                    HasSubstr("the 4 threads"), HasSubstr("--threads 1")));
}

}  // namespace
}  // namespace tutti::detail
