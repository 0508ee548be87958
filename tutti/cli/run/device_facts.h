/// What `tutti doctor` says of GPUs, and of what LibTorch needs to use them.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::cli {

struct GpuFacts {
  std::string name;  ///< empty where no driver says it
  int64_t memory_total_bytes = 0;
  int64_t memory_free_bytes = 0;  ///< for all processes; 0: not known
  std::string capability;         ///< "9.0"
  std::vector<int> peers;         ///< those whose memory it reads directly
};

struct DeviceFacts {
  std::string library;      ///< LibTorch's CUDA, as it was loaded; empty: it was not
  std::string driver;       ///< "570.86.15"
  std::string driver_cuda;  ///< the newest CUDA that the driver serves: "12.8"
  std::string nccl;         ///< "2.28.9"; empty where this build has none
  std::vector<GpuFacts> gpus;
  std::string cure;  ///< where there are none: why, and what to do
};

/// Looks. Before anything else of LibTorch: it looks for CUDA once.
DeviceFacts device_facts();

/// Lines for people: a word, and what is to be said of it.
std::vector<std::pair<std::string, std::string>> rows_of(const DeviceFacts& facts);

Json json_of(const DeviceFacts& facts);

}  // namespace tutti::cli
