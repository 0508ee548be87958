/// Logging to stderr, with worker and rank in front of each line.
///
/// The level comes from TUTTI_LOG (trace, debug, info, warning, error, off; default warning), read
/// at the first line. What a program prints for its user goes to stdout and not through here.
/// Thread rule: every function may be called from any thread; lines never mix.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace tutti {

enum class LogLevel { trace, debug, info, warning, error, off };

/// "trace", "debug", "info", "warning", "error", "off".
std::string_view name_of(LogLevel level) noexcept;

/// The level for a value of TUTTI_LOG. `warning` receives a sentence that names the nearest level
/// when the value is unknown (the default is then returned), and is cleared otherwise.
LogLevel parse_log_level(std::string_view text, std::string& warning);

LogLevel log_level();
void set_log_level(LogLevel level);

/// Names this process in the prefix: "worker 1 of 4". One worker alone is not named.
void set_log_worker(int worker, int num_workers);

/// Names the calling thread's rank in the prefix: "rank 3"; -1 takes the name away.
void set_log_rank(int rank);

/// The prefix that a line of the calling thread gets: "worker 1 of 4, rank 3: ", or "".
std::string log_prefix();

/// Writes one line when `level` is enabled: printable(message) (printable.h), which keeps line
/// breaks inside.
void log_message(LogLevel level, std::string_view message);

/// As log_message, the first time `key` is seen in this process. True when it was the first time.
bool log_message_once(std::string_view key, LogLevel level, std::string_view message);

/// log(LogLevel::info, "{} replicas on {} cores", n, cores). Arguments are formatted only when the
/// level is enabled.
template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= log_level()) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

/// The same, once a process for each `key`.
template <class... Args>
bool log_once(std::string_view key, LogLevel level, fmt::format_string<Args...> format,
              Args&&... args) {
  return log_message_once(key, level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tutti
