/// A disk that is full, as a write sees it.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace tutti::test {

/// Lets files of this process grow to `bytes` and no further while it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    previous_ = std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, previous_);
  }
  FullDisk(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*previous_)(int) = nullptr;
};

}  // namespace tutti::test
