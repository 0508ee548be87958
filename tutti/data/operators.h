/// Options of Dataset's operators (dataset.h). Thread rule: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/sample.h"

namespace tutti::data {

struct ShuffleOptions {
  std::optional<uint64_t> seed;  ///< unset: the seed that epoch() is given (that of the training)
  bool each_epoch = true;        ///< false: the same order in every epoch
  /// Samples that are mixed at a time, as tf.data's shuffle(buffer_size) does: what comes from a
  /// generator can be mixed no other way. 0, or as many as there are: all of them, evenly. >= 0.
  int64_t window = 0;
};

/// A map() in words: what a lambda does is not known from its looks.
struct MapOptions {
  std::string name = "map";  ///< in errors, and in the report of a loader
  /// What comes out. Empty: what the lambda makes of the first sample so far, which is read to see
  /// it (UsageError where there is none, and of a generator); every other has to be like it.
  std::vector<Column> columns{};
};

/// What is added to make rows equally long.
struct PadOptions {
  double value = 0;  ///< everywhere in the padding; what the columns' dtypes hold, else UsageError
  /// In place of it, by the name of the column: {{"y", -100}} for labels whose loss has
  /// .ignore_label = -100.
  std::map<std::string, double> values{};
  /// Sizes in place of those that vary, one for each kAnySize, column by column: all batches have
  /// the same shape. A row that is longer is a DataError. Empty: that of the longest row of the
  /// global batch.
  std::vector<int64_t> sizes{};
  bool drop_remainder = false;  ///< as batch()'s; of bucket_by_length: of each bucket
  /// Name of a column that is padded. Behind all columns then comes one more, "mask", of its shape:
  /// bool, true where that column has elements of its own. Model takes it as what counts.
  std::string mask_of{};
};

struct BucketOptions {
  std::vector<int64_t> boundaries{};  ///< lengths, ascending: of the first of each next bucket
  std::vector<int64_t> batches{};     ///< global batch by bucket, boundaries.size() + 1 of them
  int64_t column = 0;                 ///< whose first size is the length
  PadOptions pad{};
};

struct WindowOptions {
  int64_t shift = 0;   ///< samples from one window to the next; 0: the window's size
  int64_t stride = 1;  ///< samples from one in a window to the next
};

}  // namespace tutti::data
