/// Datasets made of several: one behind another, in turn, mixed by weights, side by side.
///
/// All are addressable. Inputs come without batch() and from no generator, else UsageError. The
/// shuffles and draws of input k use a seed of its own, made of the training's and k
/// (docs/design/sample_order.md). Where samples of several inputs follow each other, columns agree
/// in number, dtype and dimensions, and classes agree, else UsageError; sizes that differ become
/// kAnySize, names are those of the first input.
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data {

/// The samples of each, one dataset behind another.
Dataset concatenate(const std::vector<Dataset>& datasets);

struct InterleaveOptions {
  int64_t cycle = 0;  ///< datasets that are taken from in turn, >= 1; 0: all
  int64_t block = 1;  ///< samples at a time, >= 1
};

/// Some samples of each in turn. One that ends gives less in its turn; from its next turn on there
/// is the first dataset that was not begun.
Dataset interleave(const std::vector<Dataset>& datasets, InterleaveOptions options = {});

struct WeightedDataset {
  Dataset dataset;
  double weight = 1;  ///< finite, > 0; so is the sum
};

struct WeightedOptions {
  /// In one epoch, >= 1; 0: as many as can come before one of the datasets would begin again.
  int64_t num_samples = 0;
};

/// A mix: of every epoch's samples each dataset gives its share by weight (largest remainder, the
/// first of equals), at
/// places drawn by (seed, epoch). A dataset goes on in the next epoch where it was, and over its
/// end to its next pass, so that none of its samples comes twice as often as another.
Dataset weighted(const std::vector<WeightedDataset>& datasets, WeightedOptions options = {});

/// Sample i of all, as one sample of all their columns; as many as the shortest has. A name that is
/// there already gets a number: "x", "y", "x2".
Dataset zip(const std::vector<Dataset>& datasets);

}  // namespace tutti::data
