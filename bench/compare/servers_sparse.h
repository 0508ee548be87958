/// What `tutti_bench servers --rows` measures: push_pull of some rows of a large embedding table,
/// beside copying those rows twice.
///
/// Rows are float32 and the keys of a batch are drawn evenly, other ones in every sample. A sample
/// of push_pull hands in gradients and waits for the rows of the same keys after the update (SGD);
/// one of the copy gathers as many rows of a plain array of the table's size, twice, by the same
/// places. Both are in turn, and the slowest worker's time counts.
/// Thread rule: each worker calls measure_sparse() from its main thread.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/comm/group/group.h"
#include "tutti/ps/spec/staleness.h"
#include "tutti/sync/served_options.h"

namespace tutti::bench {

struct SparseBench {
  std::string engine = "shm";  ///< or "tcp"
  bool backups = true;
  ps::Staleness staleness;
  int64_t rows = 1'000'000;  ///< of the table, all made before the clock starts
  int64_t width = 64;
  int64_t keys = 4096;  ///< of a batch, <= rows
  int rounds = 5;       ///< of 40 samples each
};

struct SparseRow {
  double push_pull_us = 0;  ///< medians
  double copy_us = 0;
  bool correct = false;  ///< every gradient counted once

  /// One JSON object on one line, with "bench": "ps_sparse".
  std::string to_json(const SparseBench& bench, const ServedPlace& place) const;
};

/// One worker of a job with servers; `side` has all workers. Collective; the row on every rank.
/// Throws as ps::Client does.
SparseRow measure_sparse(Group& side, const ServedPlace& place, const SparseBench& bench);

}  // namespace tutti::bench
