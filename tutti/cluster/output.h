/// What a worker prints, line by line, behind its number.
/// Thread rule: one thread.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::detail {

/// Cuts bytes into lines, as they come.
class LineSplitter {
 public:
  /// A line longer than this is cut.
  static constexpr size_t kMaxLineBytes = 1 << 20;

  /// Calls `take` with each complete line, without its end.
  void append(std::string_view bytes, const std::function<void(std::string_view)>& take);
  /// Gives out what stands there without an end of line.
  void finish(const std::function<void(std::string_view)>& take);

 private:
  std::string partial_;
};

/// The last lines of a worker, stdout and stderr together.
class LastLines {
 public:
  static constexpr size_t kKept = 10;
  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

/// Writes all of `text`. A reader that has gone away, or a full disk, is not the workers' matter:
/// what cannot be written is dropped.
void write_whole(int descriptor, std::string_view text) noexcept;

}  // namespace tutti::detail
