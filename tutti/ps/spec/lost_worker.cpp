#include "tutti/ps/spec/lost_worker.h"

#include <array>

#include "tutti/base/error.h"

namespace tutti::ps {
namespace {

constexpr std::array kAll = {OnLostWorker::end, OnLostWorker::go_on, OnLostWorker::wait};

}  // namespace

std::string_view name_of(OnLostWorker what) noexcept {
  switch (what) {
    case OnLostWorker::end: return "end";
    case OnLostWorker::go_on: return "continue";
    case OnLostWorker::wait: return "wait";
  }
  return "?";
}

OnLostWorker on_lost_worker_from(std::string_view text, std::string_view flag) {
  for (const OnLostWorker what : kAll)
    if (name_of(what) == text) return what;
  throw UsageError(fmt::format("{} {}: expected end, continue or wait", flag, text));
}

}  // namespace tutti::ps
