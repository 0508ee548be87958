/// What is wrong with one sample of a batch; not for users.
/// Thread rule: values and pure functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/error.h"

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

}  // namespace tutti::detail
