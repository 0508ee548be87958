#include "tutti/base/event.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "tutti/base/detail/check.h"

namespace tutti {
namespace {

struct Registry {
  std::shared_mutex mutex;  // shared while events are delivered, so that removal waits for them
  std::vector<std::shared_ptr<Sink>> sinks;
};

// Never destroyed: threads may still emit while the process ends.
Registry& registry() {
  static Registry& instance = *std::make_unique<Registry>().release();
  return instance;
}

thread_local bool in_sink = false;

}  // namespace

namespace detail {

std::atomic<int> num_sinks{0};

void deliver(std::string_view name, std::span<const Field> fields) {
  if (in_sink) return;
  const Event event{name, Clock::now(), fields};
  std::shared_lock lock(registry().mutex);
  in_sink = true;
  for (const auto& sink : registry().sinks) sink->on_event(event);
  in_sink = false;
}

}  // namespace detail

const Field* Event::find(std::string_view field) const noexcept {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const Field& candidate) { return candidate.name == field; });
  return found == fields.end() ? nullptr : &*found;
}

void add_sink(std::shared_ptr<Sink> sink) {
  TUTTI_CHECK(sink != nullptr && !in_sink, "add_sink, {} a sink",
              in_sink ? "called by" : "without");
  std::unique_lock lock(registry().mutex);
  auto& sinks = registry().sinks;
  TUTTI_CHECK(std::find(sinks.begin(), sinks.end(), sink) == sinks.end(), "sink added twice");
  sinks.push_back(std::move(sink));
  detail::num_sinks = static_cast<int>(sinks.size());
}

void remove_sink(const std::shared_ptr<Sink>& sink) {
  TUTTI_CHECK(!in_sink, "remove_sink called by a sink");
  std::unique_lock lock(registry().mutex);
  std::erase(registry().sinks, sink);
  detail::num_sinks = static_cast<int>(registry().sinks.size());
}

}  // namespace tutti
