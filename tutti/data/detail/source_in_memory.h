/// What sources whose rows lie in memory have in common.
#pragma once

#include "tutti/data/source.h"

namespace tutti::data::detail {

/// Its rows have fixed shapes; gather_into() alone says what they are.
class SourceInMemory : public Source {
 public:
  Batch gather(std::span<const int64_t> rows) const final {
    Batch batch{.columns = {}, .size = std::ssize(rows)};
    for (const Column& column : columns()) batch.columns.push_back(make_column(column, batch.size));
    gather_into(rows, batch.columns);
    return batch;
  }
  void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const override = 0;
};

}  // namespace tutti::data::detail
