// What a group may not use: memory in steady state, and descriptors or mappings after its end.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "tests/support/comm.h"

namespace {
thread_local int64_t allocations_of_this_thread = 0;
}

// Counts for the whole test binary; the memory is malloc's, as it was.
void* operator new(size_t bytes) {
  ++allocations_of_this_thread;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++allocations_of_this_thread;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }

namespace tutti {
namespace {

TEST(SteadyState, SynchronousOperationsAllocateNothing) {
  for (const char* engine : {"shm", "shm staged", "tcp", "tcp loopback"})
    for (int ranks : {2, 6})
      test::run_all_members(test::make_engines(engine, ranks), [&](Group group) {
        for (int64_t n : {2, 200, 50'000}) {
          std::vector<float> data(static_cast<size_t>(n));
          const MemorySpan span = span_of(std::span(data));
          const auto once = [&] {
            group.all_reduce_now(span, ReduceOp::mean);
            group.broadcast(span, 1).wait();
            group.barrier();
          };
          once();  // scratch that is kept grows here
          const int64_t before = allocations_of_this_thread;
          for (int i = 0; i < 20; ++i) once();
          EXPECT_EQ(allocations_of_this_thread, before) << engine << ", " << n << " elements";
        }
      });
}

int64_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

int64_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:tutti") != line.npos ? 1 : 0;
  return count;
}

TEST(Lifetime, NothingStaysOpenOrMapped) {
  const int64_t descriptors = open_descriptors();
  ASSERT_EQ(mapped_segments(), 0);
  SharedParts kept;
  {
    auto members = make_shm_threads(3);
    test::run_all_members(members, [&](Group group) {
      SharedParts shared = group.allocate(10'000);
      if (group.rank() == 0) kept = shared;
    });
    EXPECT_EQ(mapped_segments(), 2);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mapped_segments(), 1) << "what a handle still shows stays";
  static_cast<char*>(kept.parts[2].data)[9'999] = 1;
  kept = {};
  EXPECT_EQ(mapped_segments(), 0);
}

TEST(Lifetime, EveryKindOfEndGivesAllBack) {
  const int64_t descriptors = open_descriptors();
  for (int round = 0; round < 10; ++round) {
    auto members = test::make_engines("shm staged", 2);
    (void)test::run_members(members, [&](Group group) {
      (void)group.allocate(5'000);
      if (group.rank() == 1) group.abort("over");
      group.barrier();
    });
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mapped_segments(), 0);
}

}  // namespace
}  // namespace tutti
