/// The flags of `tutti bench all-reduce`, which bench/compare has too.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/cli/bench/all_reduce.h"

namespace tutti::cli {

struct Command;

struct AllReduceFlags {
  std::string engine = "shm";
  std::optional<int64_t> ranks;
  std::string bytes = "8,1K,64K,1M,16M,64M";
  std::string collective = "all_reduce";
  std::string order = "fixed";
  int64_t streams = 1;
  std::string table;
  bool processes = false;
  std::string memory = "engine";
  int64_t rounds = 5;
  bool no_pin = false;
  std::string json;

  int num_ranks() const;
};

void add_all_reduce_flags(Command& command, AllReduceFlags& flags);

/// UsageError for what does not go together.
AllReduceBench bench_of(const AllReduceFlags& flags);

/// UsageError where this host has no memory for the buffers of all ranks.
void require_memory(const AllReduceFlags& flags, const AllReduceBench& bench);

/// NAME=value for Open MPI's launcher: more ranks than cores (its versions 4 and 5), and containers
/// in which everybody is root. Others ignore them.
inline constexpr const char* kOpenMpiSettings[] = {
    "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"};

}  // namespace tutti::cli
