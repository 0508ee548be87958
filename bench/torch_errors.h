/// What a program that ends by an error says: its words, without the frames that LibTorch adds.
#pragma once

#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>

namespace tutti::bench {

/// What `run` returns, or 2.
template <class Run>
int reporting_errors(Run&& run) {
  try {
    return run();
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 2;
}

}  // namespace tutti::bench
