/// What the commands of `tutti data` share: a line of progress, samples in order.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::cli {

struct Command;

void add_index_of_data(Command& data);
void add_convert_of_data(Command& data);

/// A bar on a terminal, with what `words` say; elsewhere nothing.
void show_progress(int64_t done, int64_t all, const std::string& words);

/// "12 of 340 MB"
std::string megabytes_of(int64_t done_bytes, int64_t all_bytes);

/// "ants/1.jpg: decode(): truncated": an error of a pipeline without the batch in which it was
/// read.
std::string damage_words(std::string words);

/// The samples of a dataset one after another, read ahead on all cores. Throws DataError for a
/// damaged one, Interrupted when a stop is requested.
class SamplesInOrder {
 public:
  explicit SamplesInOrder(const data::Dataset& dataset);

  std::optional<data::Sample> next();
  int64_t done() const noexcept { return begin_; }  ///< read so far
  int64_t all() const noexcept { return epoch_.num_batches(); }

 private:
  void read_more();

  data::Epoch epoch_;
  int64_t begin_ = 0;  // the first that was not read
  std::vector<data::Sample> ready_;
  size_t taken_ = 0;
};

}  // namespace tutti::cli
