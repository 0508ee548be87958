/// A disk of this process alone that answers late, never, with an error, or with its end: fsync()
/// and read() are the tests' own (slow_disk.cpp). Thread rule: any thread.
#pragma once

#include <chrono>
#include <string>

namespace tutti::test {

void hold_disk();            ///< from now on fsync() does not return
void release_disk();         ///< those that are held return, and later ones at once
void fail_disk(int number);  ///< from now on fsync() fails with this error

/// The nth fsync() from now on sends this process a signal before it begins.
void signal_in_fsync(int nth, int signal);

/// The next read() of a file whose path ends in `name` takes so long.
void slow_read(const std::string& name, std::chrono::milliseconds time);

}  // namespace tutti::test
