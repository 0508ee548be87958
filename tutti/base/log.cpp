#include "tutti/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "tutti/base/printable.h"
#include "tutti/base/suggest.h"

namespace tutti {
namespace {

constexpr LogLevel kDefaultLevel = LogLevel::warning;
constexpr std::array<std::string_view, 6> kNames = {"trace",   "debug", "info",
                                                    "warning", "error", "off"};

struct WorkerOfJob {
  std::atomic<int> worker{0};
  std::atomic<int> num_workers{1};
};

WorkerOfJob& worker_of_job() {
  static WorkerOfJob instance;
  return instance;
}

thread_local int thread_rank = -1;

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr std::array kLevels = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                  spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return kLevels[static_cast<size_t>(level)];
}

/// The logger and its level. Never destroyed: threads may log while the process ends.
struct Logger {
  Logger() : out("tutti", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    out.set_pattern("%H:%M:%S.%e tutti %l: %v");
    out.set_level(spdlog::level::trace);
    out.flush_on(spdlog::level::trace);
    const char* text = std::getenv("TUTTI_LOG");
    std::string warning;
    if (text != nullptr) level = parse_log_level(text, warning);
    if (!warning.empty()) out.warn(warning);
  }

  spdlog::logger out;
  std::atomic<LogLevel> level{kDefaultLevel};
};

Logger& logger() {
  static auto& instance = *std::make_unique<Logger>().release();
  return instance;
}

}  // namespace

std::string_view name_of(LogLevel level) noexcept { return kNames[static_cast<size_t>(level)]; }

LogLevel parse_log_level(std::string_view text, std::string& warning) {
  warning.clear();
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<LogLevel>(i);
  }
  const std::vector<std::string> known(kNames.begin(), kNames.end());
  warning = fmt::format("TUTTI_LOG: {}; using \"{}\"", unknown_message("level", text, known),
                        name_of(kDefaultLevel));
  return kDefaultLevel;
}

LogLevel log_level() { return logger().level.load(std::memory_order_relaxed); }

void set_log_level(LogLevel level) { logger().level.store(level, std::memory_order_relaxed); }

void set_log_worker(int worker, int num_workers) {
  worker_of_job().worker = worker;
  worker_of_job().num_workers = num_workers;
}

void set_log_rank(int rank) { thread_rank = rank; }

std::string log_prefix() {
  const int workers = worker_of_job().num_workers;
  std::string prefix;
  if (workers > 1) prefix = fmt::format("worker {} of {}", worker_of_job().worker.load(), workers);
  if (thread_rank >= 0) prefix += fmt::format("{}rank {}", prefix.empty() ? "" : ", ", thread_rank);
  return prefix.empty() ? prefix : prefix + ": ";
}

void log_message(LogLevel level, std::string_view message) {
  if (level < log_level() || level == LogLevel::off) return;
  logger().out.log(to_spdlog(level), "{}{}", log_prefix(), printable(message));
}

bool log_message_once(std::string_view key, LogLevel level, std::string_view message) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> seen;
  {
    std::lock_guard lock(mutex);
    if (!seen.emplace(key).second) return false;
  }
  log_message(level, message);
  return true;
}

}  // namespace tutti
