/// A picture of what more replicas give: a bar for each number of them, the ideal line, and the
/// limit of as many that never talk. It has the paper of drawing.h. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::drawings {

struct Speed {
  int64_t replicas = 1;
  double rate = 0;   ///< > 0: "images a second"
  double limit = 0;  ///< of as many that never talk to each other; 0: not measured
};

struct Speeds {
  std::string title;
  std::string unit = "images/s";
  std::vector<Speed>
      speeds;  ///< 1 to 12, replicas ascending; the ideal is replicas times the first's
  std::vector<std::string> notes;
};

/// What so many replicas would give that lose nothing: the first rate, scaled.
double ideal_of(const Speeds& speeds, int64_t replicas);

/// Throws UsageError for speeds that are not as above.
std::string svg(const Speeds& speeds);

/// A line a number of replicas: a bar of '#', and '|' where the ideal is. Throws as svg().
std::string text(const Speeds& speeds, int columns = 78);

}  // namespace tutti::drawings
