/// How a process of a job ends with an error: the one place where errors become messages and exit
/// codes.
#pragma once

#include <exception>
#include <string>

namespace tutti {

/// Tells the launcher of `error`, writes out stdout, prints `PLACE: message` to stderr unless the
/// launcher does (it names each error once for all its workers), and returns the exit code of the
/// process: 2 (UsageError, DataError), 128+signal (Interrupted) or 1 (others). Any thread.
int report_ending(const std::string& place, const std::exception& error);

/// From now on an exception that nobody catches ends the process as report_ending("error") says, on
/// whatever thread it was thrown, and neither with SIGABRT and a core, nor with lost output. What
/// runs at exit() does not: other threads still use what it destroys. A terminate handler of the
/// program's own is called instead, once the launcher was told; so is the default one for what is
/// no std::exception. join() and strategy_from_flags() call this. Idempotent. Any thread.
void install_terminate_handler();

}  // namespace tutti
