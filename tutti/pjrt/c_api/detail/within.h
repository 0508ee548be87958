/// Calls into a plugin that may not come back. Not for users.
/// Thread rule: any thread.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "tutti/base/clock.h"
#include "tutti/base/error.h"

namespace tutti::pjrt::detail {

/// What `function` gives within the limit, in a thread of its own, which is left alone where it
/// does not come back: so it owns what it uses. Timeout with `late`; what `look`, called ten times
/// a second meanwhile, throws.
template <class Function, class Look>
auto within(Millis limit, const std::string& late, Function function, const Look& look) {
  constexpr Millis kLook{100};
  using Result = std::invoke_result_t<Function&>;
  auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  std::thread([promise, function = std::move(function)]() mutable {
    try {
      promise->set_value(function());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const Deadline deadline(limit);
  while (result.wait_until(std::min(deadline.at(), Clock::now() + kLook)) !=
         std::future_status::ready) {
    look();
    if (deadline.passed())
      throw Timeout(
          fmt::format("{} within {} s", late, std::chrono::duration<double>(limit).count()));
  }
  return result.get();
}

template <class Function>
auto within(Millis limit, const std::string& late, Function function) {
  return within(limit, late, std::move(function), [] {});
}

}  // namespace tutti::pjrt::detail
