/// How a process of a job ends with an error: the one place where errors become messages and exit
/// codes. Thread rule: the main thread alone.
#pragma once

#include <exception>
#include <string>

namespace tutti {

/// Tells the launcher of `error`, prints it to stderr as `PLACE: message`, and returns the exit
/// code of the process: 2 (UsageError, DataError), 128+signal (Interrupted) or 1 (others).
int report_ending(const std::string& place, const std::exception& error);

}  // namespace tutti
