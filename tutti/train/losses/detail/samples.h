/// Samples by their place in the dataset, for what is said of them; not for users.
/// Thread rule: values and pure functions.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "tutti/data/detail/row_error.h"
#include "tutti/strategy/input/distributed_dataset.h"

namespace tutti::detail {

/// Where the samples of this replica's part stand in the dataset's source, before any shuffle.
inline std::span<const int64_t> rows_of(const data::Epoch& epoch, const DistributedBatch& batch,
                                        const ReplicaContext& replica) {
  return epoch.rows(batch.step())
      .subspan(static_cast<size_t>(batch.first_row(replica)),
               static_cast<size_t>(batch.local_size(replica)));
}

/// "evaluate, batch 3 of 4, replica 1".
inline std::string batch_words(std::string_view operation, int64_t number, const data::Epoch& epoch,
                               const ReplicaContext& replica) {
  return fmt::format("{}, batch {} of {}, replica {}", operation, number + 1, epoch.num_batches(),
                     replica.rank());
}

}  // namespace tutti::detail
