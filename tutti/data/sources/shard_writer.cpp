#include "tutti/data/sources/detail/shard_writer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/data/detail/content.h"

namespace tutti::data::detail {

void require_sample(const Sample& sample, const std::vector<Column>& columns, int64_t number) {
  if (sample.columns.size() != columns.size())
    throw DataError(fmt::format("sample {}: got {} columns, expected {}", number,
                                sample.columns.size(), columns.size()));
  for (size_t c = 0; c < columns.size(); ++c) {
    const Array& array = sample.columns[c];
    if (!fits(array, columns[c]))
      throw DataError(fmt::format("sample {}: column \"{}\" is {}, expected {}", number,
                                  columns[c].name, array.to_string(), columns[c].to_string()));
  }
}

ShardWriter::ShardWriter(std::filesystem::path folder, std::string name,
                         const WriteOptions& options)
    : folder_(std::move(folder)), name_(std::move(name)), options_(options) {
  if (options.shard_bytes < 1 || options.shard_bytes > std::numeric_limits<uint32_t>::max())
    throw UsageError(fmt::format("shard_bytes: got {}, expected 1 to {}", options.shard_bytes,
                                 std::numeric_limits<uint32_t>::max()));
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error)
    throw UsageError(fmt::format("{}: cannot be made: {}", folder_.string(), error.message()));
  if (is_there(next_path()))
    throw UsageError(
        fmt::format("{}: is there already: shards of two datasets would mix\n"
                    "  name a folder without, or remove them",
                    next_path().string()));
}

std::filesystem::path ShardWriter::next_path() const {
  return folder_ / fmt::format(fmt::runtime(name_), written_.files.size());
}

void ShardWriter::sample_done() {
  constexpr int64_t kReportEvery = 1000;
  ++samples_;
  ++written_.samples;
  if (written_.samples % kReportEvery == 0) report();
}

void ShardWriter::finish_shard(std::string_view head, std::string_view tail) {
  const std::array pieces{std::as_bytes(std::span(head)), std::as_bytes(std::span(shard_)),
                          std::as_bytes(std::span(tail))};
  const std::filesystem::path path = next_path();
  write_file_atomically(path, pieces);
  written_.files.push_back(path);
  written_.bytes += std::ssize(head) + std::ssize(shard_) + std::ssize(tail);
  shard_.clear();
  samples_ = 0;
  report();
}

Written ShardWriter::done() { return std::move(written_); }

void ShardWriter::report() const {
  if (options_.progress)
    options_.progress({.samples = written_.samples,
                       .bytes = written_.bytes + std::ssize(shard_),
                       .shards = std::ssize(written_.files)});
}

}  // namespace tutti::data::detail
