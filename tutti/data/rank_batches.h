/// RankBatches: whose each sample of a global batch is, for loops that read samples by number with
/// a loader of their own. The batches are those of Dataset::shuffle().batch(n), cut by share(), but
/// for a last one that has not a sample for each rank: it is part of the one before.
/// Thread rule: immutable; any thread may use it.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data {

struct RankBatchesOptions {
  bool shuffle = true;     ///< anew in each epoch; false: as they lie
  uint64_t seed = 0;       ///< of the order
  bool drop_last = false;  ///< leaves out what is no whole batch
};

class RankBatches {
 public:
  /// samples  in the dataset, `ranks` or more
  /// batch    the global one, of all ranks, `ranks` or more
  ///
  /// Every rank has a part of every batch, and as many batches as the others: what is left over is
  /// a smaller batch, or, where it has not a sample for each rank, part of the one before. No
  /// sample is repeated. Throws UsageError for numbers out of range, and with drop_last where there
  /// is no whole batch.
  RankBatches(int64_t samples, int64_t batch, int ranks, RankBatchesOptions options = {});

  int64_t num_batches() const noexcept { return num_batches_; }  ///< of an epoch
  /// Samples of all ranks in a batch, 0 to num_batches() - 1.
  int64_t batch_size(int64_t number) const;

  /// The order of an epoch, >= 0; costs 8 bytes a sample.
  Epoch epoch(int64_t number) const;
  /// The samples of `rank` in a batch of it, one or more.
  std::vector<int64_t> rows(const Epoch& epoch, int64_t number, int rank) const;

 private:
  int64_t samples_;
  int64_t batch_;
  int ranks_;
  RankBatchesOptions options_;
  int64_t num_batches_;
  Dataset numbers_;
};

}  // namespace tutti::data
