/// CollectivePeers of the collectives: PyTorch's Gloo and Open MPI, as programs of their own
/// (bench/peer). Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/comm/engine/engine.h"

namespace tutti::cli {

/// NAME=value for Open MPI's launcher: more ranks than cores (its versions 4 and 5), and containers
/// in which everybody is root. Others ignore them.
inline constexpr const char* kOpenMpiSettings[] = {
    "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"};

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

class CollectivePeers {
 public:
  /// Throws UsageError that names tools/setup --bench when there is no PyTorch; says so on stdout
  /// when there is no Open MPI.
  CollectivePeers();
  ~CollectivePeers();
  CollectivePeers(const CollectivePeers&) = delete;

  bool has_mpi() const noexcept { return mpi_.has_value(); }
  /// Throw Error when a peer fails or its result is wrong.
  Times gloo(const PeerTrial& trial);
  Times mpi(const PeerTrial& trial);

 private:
  struct Gloo;
  std::map<int, std::unique_ptr<Gloo>> gloo_;  // by ranks; they stay between trials
  ScratchFile program_;
  std::optional<std::string> mpi_;
};

/// Median times in lines of JSON, as `bench all-reduce` prints them. Error for a wrong result.
Times times_in(const std::string& output, const char* field = "p50_us");

}  // namespace tutti::cli
