/// `tutti_bench compare`: the same work in PyTorch, JAX and here, in turn, in one run.
///
/// Rows, bounds and aims are those of the design's table of what a step may cost. Every contender
/// gets its best: batches in memory before the clock starts, warm-up, its own cores, fused Adam,
/// one thread a rank. Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/compare/peers.h"

namespace tutti::bench {

struct CompareFlags {
  std::string data = "examples/data/quickdraw";
  std::string models = "mlp,cnn,wide";
  int64_t rounds = 5;
  int64_t steps = 0;           ///< timed steps of each measurement; 0: as many as take 1.5 s
  int64_t checked_steps = 50;  ///< of networks: after so many losses must be equal
  bool quick = false;          ///< a few steps, one round: does it still run?
  bool all_reduce = false;     ///< collectives against those of others instead of steps
  std::string ranks = "2,4";   ///< of all_reduce
  std::string json;
};

/// A claim: `ours` is at least `bound` times as fast as `theirs`; `aim` is what it should be.
struct Claim {
  std::string ours, theirs;  ///< names of contenders
  double bound = 0, aim = 0;
};

/// A model at a batch size, and what is claimed of it.
struct Subject {
  std::string model;
  int64_t batch = 64;  ///< of one replica; two replicas train
  std::vector<Claim> claims;
};

/// What stands between the commas.
std::vector<std::string> words_of(const std::string& list);

/// The design's rows for these models. UsageError for an unknown model.
std::vector<Subject> subjects_for(const std::vector<std::string>& models);

/// Returns the exit code. UsageError that names tools/setup --bench when there is no PyTorch.
int compare(const CompareFlags& flags);

/// A collective of an engine beside Gloo and the others of peers.h that are installed.
struct CollectiveComparison {
  std::string engine = "shm";  ///< shm or tcp
  int ranks = 2;
  Collective collective = Collective::all_reduce;
  std::vector<int64_t> bytes;
  int64_t rounds = 5;
  std::vector<std::string> memories = {"engine"};  ///< of shm: AllReduceRow::memory, each measured
  bool quick = false;
  std::vector<std::string> more_words;  ///< flags for our own measurement
};

/// Of each size the least of these times: what the best of all peers needs.
Times best_of(const std::vector<Times>& peers);

/// Prints the rows as they come; they are returned as lines of JSON.
std::string compare_collective(const CollectiveComparison& what, CollectivePeers& peers);

/// `--all-reduce`: all collectives of shm and tcp, with each of these numbers of ranks.
int compare_all_reduce(const CompareFlags& flags);

/// The Python of .venv. UsageError when it has no torch.
std::string python_with_torch();

}  // namespace tutti::bench
