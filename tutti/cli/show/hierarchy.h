/// `tutti show hierarchy`: an all-reduce that adds up inside hosts before it crosses between them.
/// Thread rule: the main thread alone; hierarchy_shown() is a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/cli/show/shown.h"
#include "tutti/observe/recorder.h"

namespace tutti::cli {

struct Command;

struct HierarchyTrace {
  int hosts = 2, ranks_per_host = 2;
  int64_t bytes = 0;  ///< of each rank's vector
  bool correct = false;
  std::vector<Recorded> events;  ///< "hier." and "tcp." of one all-reduce; groups are "rail 0", ...
};

/// Sums a vector of `bytes` (a multiple of 64 for each rank of a host, more than 64 KiB) on
/// threads: those of a "host" share memory, hosts are connected as others are.
HierarchyTrace run_hierarchy(int hosts, int ranks_per_host, int64_t bytes);

Shown hierarchy_shown(const HierarchyTrace& trace);

void add_show_hierarchy(Command& show);

}  // namespace tutti::cli
