/// A dataset's batches as bytes, read as replicas do: what different ways of reading are compared
/// by.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/data/loader/loader.h"

#include "tests/support/random_pipeline.h"

namespace tutti::test {

/// Appends batch `step`: its size, then each column with its shape.
inline void append(std::string& bytes, const PlainBatch& batch) {
  bytes += std::to_string(batch.size) + " rows;";
  for (const Cell& column : batch.columns) append(bytes, column);
}

/// Batches [begin, end) of an epoch as `world` replicas read them, each its part; end < 0: all.
using Reader = std::function<std::string(const data::Dataset& dataset, int world,
                                         data::EpochOptions epoch, int64_t begin, int64_t end)>;

/// The parts of all replicas, one behind another.
inline PlainBatch joined(const std::vector<data::Batch>& parts) {
  PlainBatch whole;
  for (const data::Batch& part : parts) {
    const Cells columns = cells_of({part.columns});
    if (whole.columns.empty()) {
      whole = {part.size, columns};
      continue;
    }
    whole.size += part.size;
    for (size_t c = 0; c < columns.size(); ++c) {
      Cell& all = whole.columns.at(c);
      // Shapes of a row are those of the global batch, so that they are the same in every part.
      if (!std::equal(all.shape.begin() + 1, all.shape.end(), columns[c].shape.begin() + 1,
                      columns[c].shape.end()))
        all.shape = {-1};
      all.shape[0] += columns[c].shape[0];
      all.values.insert(all.values.end(), columns[c].values.begin(), columns[c].values.end());
    }
  }
  return whole;
}

/// Steps [begin, end) with each replica's part by `part(step, rank)`.
template <class Part>
std::string joined_steps(int64_t begin, int64_t end, int world, Part part) {
  std::string bytes;
  for (int64_t step = begin; step < end; ++step) {
    std::vector<data::Batch> parts;
    for (int rank = 0; rank < world; ++rank) parts.push_back(part(step, rank));
    append(bytes, joined(parts));
  }
  return bytes;
}

/// Where no loader runs: each replica computes its part of a batch when it needs it.
inline std::string read_inline(const data::Dataset& dataset, int world, data::EpochOptions options,
                               int64_t begin, int64_t end) {
  const data::Epoch epoch = dataset.epoch(options);
  return joined_steps(begin, end < 0 ? epoch.num_batches() : end, world,
                      [&](int64_t step, int rank) {
                        return epoch.part(step, data::share(epoch.batch_size(step), world, rank));
                      });
}

/// By one loader for all that the Reader reads; steps behind `end` are computed in vain.
inline Reader read_by_loader(const data::LoaderOptions& how) {
  return [loader = std::make_shared<data::Loader>(how)](const data::Dataset& dataset, int world,
                                                        data::EpochOptions options, int64_t begin,
                                                        int64_t end) {
    const data::Epoch epoch = dataset.epoch(options);
    loader->begin(epoch, {.replicas = world,
                          .first_step = begin,
                          .end_step = epoch.num_batches(),
                          .part = [epoch, world](int64_t step, int rank) {
                            return data::BatchPart{
                                step, data::share(epoch.batch_size(step), world, rank)};
                          }});
    return joined_steps(
        begin, end < 0 ? epoch.num_batches() : end, world,
        [&](int64_t step, int rank) { return loader->take(step, rank, Deadline(Millis{60'000})); });
  };
}

}  // namespace tutti::test
