/// ShardWriter: what the writers of records share: shards of a size, whole or not at all, counted.
///
/// Thread rule: one thread at a time per object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tutti/data/sources/records.h"

namespace tutti::data::detail {

/// Throws DataError, with the number of the sample, when a sample is not as `columns` say.
void require_sample(const Sample& sample, const std::vector<Column>& columns, int64_t number);

class ShardWriter {
 public:
  /// name  of a shard by its number: "shard-{:05d}.tar"
  ///
  /// Makes the folder. Throws UsageError when it has such a shard or when options make no sense.
  ShardWriter(std::filesystem::path folder, std::string name, const WriteOptions& options);

  /// Whether a sample of so many bytes begins a new shard, beside `extra` that a shard has anyway.
  bool is_full(int64_t sample_bytes, int64_t extra = 0) const noexcept {
    return samples_ > 0 && std::ssize(shard_) + sample_bytes + extra > options_.shard_bytes;
  }

  /// The bytes of the shard so far: a sample is appended, then counted by sample_done().
  std::string& shard() noexcept { return shard_; }
  void sample_done();

  /// Writes head + shard + tail as the next shard.
  void finish_shard(std::string_view head = {}, std::string_view tail = {});

  int64_t samples_in_shard() const noexcept { return samples_; }
  /// Path of the shard that is written next.
  std::filesystem::path next_path() const;

  /// All that was written. Reports the last progress.
  Written done();

 private:
  void report() const;

  std::filesystem::path folder_;
  std::string name_;
  WriteOptions options_;
  std::string shard_;
  int64_t samples_ = 0;
  Written written_;
};

}  // namespace tutti::data::detail
