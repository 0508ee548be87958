/// The same work on many files at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "tutti/base/threads.h"

namespace tutti::data::detail {

/// work(0) ... work(count - 1) on as many threads as the machine has. All end before it returns;
/// then what the lowest i threw is thrown.
inline void in_parallel(int64_t count, const std::function<void(int64_t)>& work) {
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(count));
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[static_cast<size_t>(i)] = std::current_exception();
      }
    }
  };
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  at_once(static_cast<int>(std::min(count, cores)), "files that are read at once",
          [&](int) { run(); });
  for (const std::exception_ptr& error : thrown)
    if (error) std::rethrow_exception(error);
}

}  // namespace tutti::data::detail
