/// Samples by their place in the dataset, for what is said of them; not for users.
/// Thread rule: values and pure functions.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"

namespace tutti::detail {

/// One sample of a batch is wrong. Who finds that knows its row in the batch alone; who has cut the
/// batch says which sample of the dataset that is.
class RowError : public DataError {
 public:
  /// has  "label 7, but the model gives 3 classes"
  RowError(const std::string& who, int64_t row, const std::string& has)
      : DataError(fmt::format("{}: row {} of the batch has {}", who, row, has)),
        who_(who),
        row_(row),
        has_(has) {}

  /// The same where each sample has so many rows.
  RowError of_samples(int64_t positions) const { return {who_, row_ / positions, has_}; }

  /// The same where the batch's first row is row `first` of the replica's part.
  RowError of_part(int64_t first) const { return {who_, first + row_, has_}; }

  /// `rows` are those of the batch in the dataset.
  DataError at(std::string_view place, std::span<const int64_t> rows) const {
    return DataError(fmt::format("{}: {}: sample {} of the dataset has {}", place, who_,
                                 rows[static_cast<size_t>(row_)], has_));
  }

 private:
  std::string who_;
  int64_t row_;
  std::string has_;
};

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
