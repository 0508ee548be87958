/// Which build of a program a process runs: processes that call each other's functions by name must
/// be of one.
/// Thread rule: pure.
#pragma once

#include <string>

namespace tutti::coordinator {

/// The first 16 hex digits of the SHA-256 of this process's program file. Throws Error when that
/// cannot be read.
std::string build_of_this_process();

}  // namespace tutti::coordinator
