/// TUTTI_CHECK: the invariant check of the library's own sources (not for public headers).
#pragma once

#include "tutti/base/error.h"

/// TUTTI_CHECK(slot < size, "slot {} of {}", slot, size): throws Error with place and values.
#define TUTTI_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::tutti::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
