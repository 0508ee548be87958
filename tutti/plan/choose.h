/// Which of many jobs is the best, why, and what would change that: all are predicted, and
/// compared.
///
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tutti/plan/predict.h"

namespace tutti::plan {

enum class Objective : uint8_t {
  time,  ///< the training ends soonest
  cost,  ///< the fewest hosts times hours, servers' too
};

/// The jobs are all combinations of the lists; none may be empty.
struct Search {
  std::vector<int> hosts{1};
  std::vector<int> replicas_per_host{1};
  std::vector<int64_t> batches{32};  ///< of a replica
  /// Exchange, servers, staleness, overlap, bucket_bytes, piece_bytes and updates_each; the rest is
  /// taken from elsewhere. A job that amounts to one before it is left out: on one host pieces are
  /// none, and the size that strategies take is told once.
  std::vector<Job> kinds{Job{}};
  /// Of a fused step without overlap. One that amounts to another before it is left out: with one
  /// rank a host hier is tcp, on one host all are shm.
  std::vector<EngineKind> engines{EngineKind::fitting};
  Link link{};
  Objective objective = Objective::time;
  double samples = 1e9;    ///< that a training with a small batch needs, > 0
  double noise_scale = 0;  ///< samples; 0: unknown, then no batch is too large
  double within = std::numeric_limits<double>::infinity();  ///< seconds that it may take, > 0
};

/// A job and what a training of it takes.
struct Candidate {
  Prediction prediction;
  double seconds = 0;       ///< of the whole training
  double host_seconds = 0;  ///< times hosts and servers
};

struct Choice {
  Candidate best;
  int64_t tried = 0;         ///< that fit into memory
  int64_t too_large = 0;     ///< that do not
  int64_t too_slow = 0;      ///< that do not end within
  std::string why;           ///< a sentence
  std::string what_changes;  ///< a sentence: the least changes that lead to another choice
};

/// Samples that a training with `batch` samples a step, of all replicas, needs for what one with a
/// small batch needs search.samples: E = E_min (1 + B / B_noise) (McCandlish et al. 2018, arXiv
/// 1812.06162, section 2.3).
double samples_needed(const Search& search, double batch);

/// All combinations, each once: kinds slowest, then engines, replicas, batches, hosts. Throws
/// UsageError for an empty list, and for an engine that one of the numbers of hosts cannot have.
std::vector<Job> jobs_of(const Search& search);

/// Candidates of all jobs that fit into memory and time, in the order of jobs_of.
std::vector<Candidate> candidates_of(const Machine& machine, const Search& search);

/// Throws UsageError where no job fits, with what hinders the one that is nearest. Ties go to fewer
/// hosts, then to the smaller batch, then to what comes first in jobs_of.
Choice choose(const Machine& machine, const Search& search);

}  // namespace tutti::plan
