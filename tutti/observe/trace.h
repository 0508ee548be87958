/// Trace: what happened when in this process, as a file for chrome://tracing or Perfetto.
///
/// A sink of all events (event.h). One with a field "us" is drawn as a bar of that length which
/// ends when it was emitted, others as marks; each thread has its row. The format: "Trace Event
/// Format" of Chrome, JSON object form.
/// Thread rule: as Sink.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/base/event.h"

namespace tutti {

class Trace final : public Sink {
 public:
  /// What is kept; later events are counted and left out, so that memory is bounded.
  static constexpr size_t kMostEvents = 1'000'000;

  /// `process` is the number under which its rows stand (a worker's), `name` what people read.
  Trace(int process, std::string name);

  void on_event(const Event& event) noexcept override;

  /// The events so far, by the time at which they began.
  std::string json() const;

 private:
  struct Entry {
    double begin_us = 0;    // since the clock's own beginning: one for all processes of a host
    double length_us = -1;  // < 0: a mark
    int thread = 0;
    std::string name;
    std::string arguments;  // a JSON object
  };
  void keep(const Event& event);

  const int process_;
  const std::string name_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Entry> entries_;
  std::map<int, int> threads_;  // of the system: rows, from 0 on in order of appearance
  int64_t left_out_ = 0;
};

/// A trace that goes on, and its file.
class RunningTrace {
 public:
  /// Traces this process from now on. Worker 0 writes `file`, worker 3 `file` with ".3" before its
  /// extension. Throws UsageError when the file cannot be made.
  RunningTrace(const std::filesystem::path& file, int worker);
  RunningTrace(const RunningTrace&) = delete;
  /// Without end() before: as end(), and what cannot be written is logged.
  ~RunningTrace();

  /// Ends it and writes the file; once. Throws Error that names the file when that fails.
  void end();

 private:
  const std::filesystem::path file_;
  std::shared_ptr<Trace> trace_;  // null after end()
};

/// A trace to the file of TUTTI_TRACE; null without it. All callers of one process share one.
/// `worker` is asked only then.
std::shared_ptr<RunningTrace> trace_by_environment(const std::function<int()>& worker);

inline constexpr const char* kTraceVariable = "TUTTI_TRACE";

}  // namespace tutti
