/// A process that may start only so many threads more.
#pragma once

#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>

namespace tutti::test {

/// For rank programs, whose processes end afterwards: from now on `more` threads can start, by
/// ulimit -u. As root it first becomes a user that has no others; who is no root has some, and then
/// none can.
inline void allow_threads(int more) {
  const auto user = static_cast<uid_t>(3'000'000 + getpid());
  const bool alone =
      geteuid() == 0 && setgroups(0, nullptr) == 0 && setresuid(user, user, user) == 0;
  const auto here = std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                  std::filesystem::directory_iterator());
  const rlim_t limit = alone ? static_cast<rlim_t>(here + more) : 1;
  const rlimit both{limit, limit};
  setrlimit(RLIMIT_NPROC, &both);
}

}  // namespace tutti::test
