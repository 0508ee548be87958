/// What NVIDIA's driver says of this machine's GPUs, without CUDA headers and without a context,
/// which would take some of their memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct DriverDevice {
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-1b9b...", of a part of a GPU "MIG-..."
  int64_t memory_total_bytes = 0;
  int64_t memory_free_bytes = 0;  ///< for all processes; 0: not known
  std::string capability;         ///< "9.0"
  std::vector<int> peers;         ///< those whose memory it reads directly
};

struct DriverFacts {
  std::string version;                ///< "570.86.15"; empty where NVML is not there to say it
  std::string cuda_version;           ///< the newest that it serves: "12.8"
  std::vector<DriverDevice> devices;  ///< as CUDA numbers them: CUDA_VISIBLE_DEVICES counts
  std::string why;  ///< in words, where nothing is known: no library, or what it said
};

/// Names of shared libraries, as dlopen() takes them.
struct DriverLibraries {
  std::string cuda = "libcuda.so.1";
  std::string nvml = "libnvidia-ml.so.1";
};

/// Asks the driver; never throws. A driver that hangs, hangs this: it has no limit of its own.
/// Thread rule: any thread.
DriverFacts driver_facts(const DriverLibraries& libraries = {});

}  // namespace tutti
