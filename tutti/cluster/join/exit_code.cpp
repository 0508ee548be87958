#include "tutti/cluster/join/exit_code.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <mutex>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"

namespace tutti {
namespace {

constexpr Millis kTelling{2'000};  // longer than any of its waits

int code_of(const std::exception& error) {
  if (const auto* end = dynamic_cast<const Interrupted*>(&error)) return 128 + end->signal();
  const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr ||
                     dynamic_cast<const DataError*>(&error) != nullptr;
  return usage ? 2 : 1;
}

// A thread that is stuck in a write of its own must not hold up the end.
void flush_stdout() {
  if (ftrylockfile(stdout) != 0) return;
  std::cout.flush();  // may have a buffer of its own
  std::fflush(stdout);
  funlockfile(stdout);
}

std::terminate_handler previous = nullptr;  // written once, before ours can be called

bool is_default(std::terminate_handler handler) {
  return handler == nullptr || handler == __gnu_cxx::__verbose_terminate_handler;
}

[[noreturn]] void call_previous() {
  flush_stdout();
  if (previous != nullptr) previous();
  std::abort();
}

int end_words(const std::string& place, const std::exception& error, bool shown) {
  flush_stdout();
  if (!shown) std::fprintf(stderr, "%s: %s\n", place.c_str(), plain_words(error.what()).c_str());
  return code_of(error);
}

// report_failure() by another thread: nothing was unwound, so this one may hold what it needs.
bool report_beside(const std::exception& error) {
  try {
    std::packaged_task<bool()> tell([&] { return report_failure(error); });
    std::future<bool> told = tell.get_future();
    std::thread(std::move(tell)).detach();
    return told.wait_for(kTelling) == std::future_status::ready && told.get();
  } catch (const std::exception&) {  // no thread is to be had
    return false;
  }
}

[[noreturn]] void end_with(const std::exception& error) {
  const bool shown = report_beside(error);
  if (is_default(previous)) _exit(end_words("error", error, shown));
  call_previous();
}

// The first thread ends the process; others wait for that. One that comes here again has failed to.
void take_turn() {
  static std::atomic<bool> taken = false;
  static thread_local bool own = false;
  if (own) std::abort();
  own = true;
  while (taken.exchange(true)) pause();
}

[[noreturn]] void on_terminate() {
  take_turn();
  if (const auto pending = std::current_exception()) {
    try {
      std::rethrow_exception(pending);
    } catch (const std::exception& error) {
      end_with(error);
    } catch (...) {
      report_beside(Error("an exception that is not a std::exception"));
    }
  }
  call_previous();
}

}  // namespace

int report_ending(const std::string& place, const std::exception& error) {
  return end_words(place, error, report_failure(error));
}

void install_terminate_handler() {
  static std::once_flag once;  // a second time our own handler would be the previous one
  std::call_once(once, [] {
    previous = std::get_terminate();
    std::set_terminate(on_terminate);
  });
}

}  // namespace tutti
