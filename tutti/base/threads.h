/// Threads that say, where they cannot start, which limit keeps them from it.
///
/// Nothing here starts one silently elsewhere: whoever asks gets the threads, or an Error.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace tutti {

/// Words for the errno of a thread or process that could not start: where a limit may be why
/// (EAGAIN) with those that there are (ulimit -u, pids.max), and how many count against each.
std::string why_no_start(int error_number);

/// Throws the Error of a thread for `what` that could not start.
[[noreturn]] void throw_no_thread(std::string_view what, const std::system_error& why);

/// Starts a thread that calls `body`. Thread is std::thread or std::jthread; `what` says whom it is
/// for: "replica 1".
template <class Thread = std::thread, class Body>
Thread start_thread(std::string_view what, Body&& body) {
  try {
    return Thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw_no_thread(what, error);
  }
}

/// fn(0) ... fn(count - 1) at the same time, the first on this thread, each other one on a thread
/// of its own; all have returned before it does. Rethrows what the lowest threw. Where not all
/// threads can start none is called: those that have started may wait for the others.
void at_once(int count, std::string_view what, const std::function<void(int)>& fn);

}  // namespace tutti
