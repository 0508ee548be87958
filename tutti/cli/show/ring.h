/// `tutti show ring`: an all-reduce round a ring, and which piece went where in which step.
/// Thread rule: the main thread alone; ring_shown() is a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/cli/show/shown.h"
#include "tutti/observe/drawing.h"
#include "tutti/observe/recorder.h"

namespace tutti::cli {

struct Command;

/// The first rank stands at both ends.
inline constexpr int kMostRingRanks = drawings::kMostLanes - 1;

struct RingTrace {
  int ranks = 2;
  int64_t bytes = 0;  ///< of each rank's vector: a multiple of 4 x ranks
  bool correct = false;
  std::vector<Recorded> events;  ///< "tcp." of one all-reduce
};

/// Sums a vector of about so many bytes (at least: whole pieces of float32) on `ranks` threads.
RingTrace run_ring(int ranks, int64_t bytes);

/// The drawing and the figures of one. Throws Error for a trace that is none of a ring.
Shown ring_shown(const RingTrace& trace);

void add_show_ring(Command& show);

}  // namespace tutti::cli
