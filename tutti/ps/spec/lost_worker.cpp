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

void check(OnLostWorker what, const Staleness& staleness, int drop_slowest) {
  if (what == OnLostWorker::end) return;
  if (!staleness.synchronous())
    throw UsageError(
        fmt::format("--on-lost-worker {} with --staleness {}: out of step the others always go on "
                    "without a lost worker, and its batches are given out again; leave it out",
                    name_of(what), staleness.text()));
  if (drop_slowest > 0)
    throw UsageError(fmt::format(
        "--on-lost-worker {} with --drop-slowest {}: steps that leave workers out do not know a "
        "lost one from a slow one; give one of the two",
        name_of(what), drop_slowest));
}

}  // namespace tutti::ps
