/// Collects what listeners say of connections that they turned away.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/event.h"
#include "tutti/base/log.h"

namespace tutti::test {

/// Listens to "net.refused" events while it lives, and keeps the log silent meanwhile.
class Refusals {
 public:
  Refusals() : level_(log_level()), sink_(std::make_shared<Collector>()) {
    set_log_level(LogLevel::off);
    add_sink(sink_);
  }
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;
  ~Refusals() {
    remove_sink(sink_);
    set_log_level(level_);
  }

  /// "ADDRESS: why" of the first one whose words contain `part`; waits for it. "" at the deadline.
  std::string wait_for(std::string_view part, const Deadline& deadline) {
    std::unique_lock lock(sink_->mutex);
    std::string found;
    sink_->changed.wait_until(lock, deadline.at(), [&] {
      const auto& all = sink_->lines;
      const auto line = std::find_if(all.begin(), all.end(), [&](const std::string& candidate) {
        return candidate.find(part) != std::string::npos;
      });
      if (line != all.end()) found = *line;
      return line != all.end();
    });
    return found;
  }

  size_t count() {
    std::lock_guard lock(sink_->mutex);
    return sink_->lines.size();
  }

 private:
  struct Collector final : Sink {
    void on_event(const Event& event) noexcept override {
      if (event.name != "net.refused") return;
      const auto text = [&](std::string_view field) {
        return std::string(std::get<std::string_view>(event.find(field)->value));
      };
      std::lock_guard lock(mutex);
      lines.push_back(text("from") + ": " + text("why"));
      changed.notify_all();
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> lines;
  };

  LogLevel level_;
  std::shared_ptr<Collector> sink_;
};

}  // namespace tutti::test
