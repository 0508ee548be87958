/// Peers of the collectives: PyTorch's Gloo, Open MPI, DeepSpeed's shared memory and oneCCL, as
/// programs of their own (bench/peer). Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/engine/engine.h"

namespace tutti::bench {

/// Median microseconds of the slowest rank, by bytes.
using Times = std::map<int64_t, double>;

/// What is asked of a peer.
struct PeerTrial {
  Collective collective = Collective::all_reduce;
  int ranks = 2;
  std::vector<int64_t> bytes;  ///< multiples of 4 x ranks where the collective cuts the whole
  int iterations = 15;
  bool over_tcp = false;  ///< Open MPI moves data by its TCP, as Gloo always does
};

inline constexpr const char* kGloo = "Gloo";
inline constexpr const char* kMpi = "Open MPI";
inline constexpr const char* kDeepSpeed = "DeepSpeed";  ///< all_reduce alone, in shared memory
inline constexpr const char* kOneCcl = "oneCCL";        ///< the same

class CollectivePeer {
 public:
  virtual ~CollectivePeer() = default;
  /// Throws Error when it fails or its result is wrong.
  virtual Times times(const PeerTrial& trial) = 0;
};

class CollectivePeers {
 public:
  /// Throws UsageError that names tools/setup --bench when there is no PyTorch.
  CollectivePeers();
  /// Those that take part, started on first use; of one that cannot stdout is told once.
  std::vector<std::string> names(const PeerTrial& trial);
  /// Of one of these names. Throws Error as CollectivePeer does.
  Times times(const std::string& name, const PeerTrial& trial);

 private:
  std::map<std::string, std::unique_ptr<CollectivePeer>> peers_;  // null: left out
};

/// What peers compile for themselves and keep.
std::filesystem::path peers_folder();

/// DeepSpeed's all-reduce as a library of LibTorch's operators, compiled on first use. Throws Error
/// when it cannot be.
std::string deepspeed_library();

/// Tells stdout that a peer takes no part, and why: the last line of the error.
void say_left_out(const std::string& name, const Error& error);

/// Median times in lines of JSON, as `bench all-reduce` prints them. Error for a wrong result.
Times times_in(const std::string& output, const char* field = "p50_us");

}  // namespace tutti::bench
