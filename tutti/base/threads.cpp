#include "tutti/base/threads.h"

#include <atomic>
#include <cerrno>
#include <exception>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/host.h"

namespace tutti {

std::string why_no_start(int error_number) {
  if (error_number != EAGAIN) return errno_words(error_number);
  return fmt::format(
      "{}\n  {}\n  raise the limit, or ask for fewer replicas, workers or loader threads",
      errno_words(error_number), thread_limit_words());
}

void throw_no_thread(std::string_view what, const std::system_error& why) {
  throw Error(
      fmt::format("no thread for {} can be started: {}", what, why_no_start(why.code().value())));
}

void at_once(int count, std::string_view what, const std::function<void(int)>& fn) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  const auto guarded = [&](int number) {
    try {
      fn(number);
    } catch (...) {
      errors[static_cast<size_t>(number)] = std::current_exception();
    }
  };
  enum Gate : int { closed, open, given_up };
  std::atomic<int> gate{closed};
  const auto decide = [&](Gate decision) {
    gate = decision;
    gate.notify_all();
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(count));
    try {
      for (int number = 1; number < count; ++number)
        threads.push_back(start_thread<std::jthread>(what, [&, number] {
          gate.wait(closed);
          if (gate == open) guarded(number);
        }));
    } catch (...) {
      decide(given_up);
      throw;
    }
    decide(open);
    if (count > 0) guarded(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace tutti
