/// Which engine fits where the ranks of a group are? A pure decision that explains itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// The engines that can be asked for: "auto", "solo", "shm", "tcp", "hier", "mpi", "nccl". Buffers
/// lie in host memory, unless on_device.
struct EngineQuestion {
  std::string_view asked = "auto";
  std::vector<int> replicas_per_host;  ///< in rank order
  bool mpi_built = false;
  bool mpi_launcher = false;  ///< the ranks were started by mpirun or srun with MPI
  bool nccl_built = false;
  bool on_device = false;  ///< buffers lie in memory of CUDA devices
};

struct EngineChoice {
  std::string engine;  ///< never "auto"
  std::string reason;  ///< "all 4 ranks are on one host"
};

/// Throws UsageError, saying which engines would do, when the one that was asked for cannot serve.
EngineChoice choose_engine(const EngineQuestion& question);

}  // namespace tutti
