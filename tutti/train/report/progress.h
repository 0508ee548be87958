/// What fit() shows while it trains: a bar on a terminal, plain lines every few seconds elsewhere.
/// Thread rule: one thread, that of rank 0; nothing is formatted before a line is due.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

/// FitOptions::verbose: 0, 1, 2.
enum class Verbose : uint8_t {
  silent,
  automatic,  ///< a bar on a terminal, else a line every few seconds; a line an epoch
  epochs,     ///< a line an epoch
};

/// A name and its value now.
using NamedValues = std::vector<std::pair<std::string, double>>;

class Progress {
 public:
  /// `out` stays the caller's. Whether it is a terminal decides between bar and lines.
  Progress(Verbose verbose, int64_t epochs, std::FILE* out = stdout);
  /// Ends the line of a bar, so that what is printed next stands alone.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin_epoch(int64_t epoch, int64_t steps, TimePoint now);

  /// True when a bar or line is due: call show() then.
  bool due(TimePoint now) const noexcept { return now >= next_; }

  /// done  steps of this epoch; images: samples of this epoch, over all replicas
  void show(int64_t done, int64_t images, const NamedValues& values, TimePoint now);

  /// The line that stays: true values of the epoch, over all replicas.
  void end_epoch(const NamedValues& values, double seconds, double images_per_second);
  /// A line of its own, unless silent.
  void say(const std::string& text);

 private:
  void write(const std::string& text, bool stays);

  Verbose verbose_;
  int64_t epochs_;
  std::FILE* out_;
  bool terminal_;
  int64_t epoch_ = 0;
  int64_t steps_ = 0;
  TimePoint begin_{};
  TimePoint next_ = TimePoint::max();
  bool bar_shown_ = false;
};

/// What evaluate() shows meanwhile: a bar on a terminal, of which nothing stays; elsewhere nothing.
class EvaluationBar {
 public:
  /// `out` stays the caller's. Nothing is shown unless it is a terminal, and `wanted`.
  EvaluationBar(bool wanted, TimePoint now, std::FILE* out = stderr);
  /// Takes the bar away.
  ~EvaluationBar();
  EvaluationBar(const EvaluationBar&) = delete;
  EvaluationBar& operator=(const EvaluationBar&) = delete;

  /// After each batch: done of so many; samples: of those that are done, over all replicas. Shows
  /// the first, and then what is due.
  void show(int64_t done, int64_t batches, int64_t samples, TimePoint now);

 private:
  std::FILE* out_;  // null: nothing is shown
  const TimePoint begin_;
  TimePoint next_;
  bool shown_ = false;
};

/// "12,345": a number with its thousands apart.
std::string with_commas(double number);

/// "0:42", "3:07", "1:02:03".
std::string clock_words(double seconds);

}  // namespace tutti
