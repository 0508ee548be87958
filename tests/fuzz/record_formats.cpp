#include "tests/fuzz/record_formats.h"

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/detail/cache.h"
#include "tutti/data/files.h"
#include "tutti/data/npy.h"
#include "tutti/data/safetensors.h"
#include "tutti/data/sources/detail/example.h"
#include "tutti/data/sources/detail/record_index.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/tar.h"
#include "tutti/data/sources/mds.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/extras/mds/detail/mds_format.h"

namespace tutti::test {
namespace {

using namespace data;  // NOLINT(google-build-using-namespace): its parsers

/// What readers of records rely on: ends the process where it does not hold.
void must_hold(bool holds) {
  if (!holds) std::abort();
}

class BytesAsFile final : public Files {
 public:
  explicit BytesAsFile(std::string_view bytes) : bytes_(bytes) {}
  std::vector<FileInfo> list(const std::filesystem::path&) const override { return {info("")}; }
  FileInfo info(const std::filesystem::path&) const override {
    return {.name = "fuzzer", .bytes = static_cast<int64_t>(bytes_.size())};
  }
  Array read(const std::filesystem::path&, int64_t offset, int64_t bytes) const override {
    must_hold(offset >= 0 && offset <= std::ssize(bytes_) &&
              (bytes < 0 || bytes <= std::ssize(bytes_) - offset));
    return bytes_of(bytes_.substr(static_cast<size_t>(offset),
                                  bytes < 0 ? std::string_view::npos : static_cast<size_t>(bytes)));
  }

 private:
  std::string_view bytes_;
};

/// A folder of MDS that has one shard, packed.
class PackedShard final : public Files {
 public:
  PackedShard(std::string index, std::string_view packed)
      : index_(std::move(index)), packed_(packed) {}
  std::vector<FileInfo> list(const std::filesystem::path&) const override { return {}; }
  FileInfo info(const std::filesystem::path& path) const override {
    return {.name = path.string(), .bytes = std::ssize(text(path))};
  }
  Array read(const std::filesystem::path& path, int64_t, int64_t) const override {
    return bytes_of(text(path));
  }

 private:
  std::string_view text(const std::filesystem::path& path) const {
    if (path == "index.json") return index_;
    if (path == "packed") return packed_;
    throw DataError("it is not there");
  }

  std::string index_;
  std::string_view packed_;
};

}  // namespace

void record_example(std::string_view bytes) {
  static const data::detail::ExampleReader reader(
      {{.name = "i", .dtype = DType::int64, .shape = {kAnySize}, .missing = int64_t{3}},
       {.name = "f", .dtype = DType::float32, .shape = {kAnySize, 2}, .missing = 0.5},
       {.name = "s", .dtype = DType::uint8, .shape = {kAnySize}, .missing = std::string("none")}});
  for (const Feature& feature : data::detail::features_in(bytes))
    must_hold(feature.shape.empty() || feature.shape[0] != 1);
  const Sample sample = reader.read(bytes);
  must_hold(sample.columns.size() == 3 && sample.columns[1].shape().at(1) == 2);
  must_hold(sample.columns[2].num_bytes() <= std::ssize(bytes) + 4);
}

void record_tfrecord(std::string_view bytes) {
  const VerifyOptions options{.files = std::make_shared<BytesAsFile>(bytes)};
  for (const Finding& finding : verify_tfrecord("fuzzer", {}, options))
    must_hold(!finding.to_string().empty() && finding.byte <= std::ssize(bytes));
}

void record_index_file(std::string_view bytes) {
  FileInfo made_of;
  const auto index = data::detail::decode_index(bytes, "fuzz 1", made_of);
  for (int64_t i = 0; i < index.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    must_hold(index.offsets[at] >= 0 && index.bytes[at] <= made_of.bytes - index.offsets[at]);
    if (!index.name_ends.empty()) must_hold(index.name(i).size() <= bytes.size());
  }
}

void record_tar(std::string_view bytes) {
  const BytesAsFile file(bytes);
  data::detail::FileWindow window(file, "fuzzer");
  data::detail::for_each_member(
      window, [&](const std::string& name, int64_t offset, int64_t count) {
        must_hold(name.size() <= bytes.size());
        must_hold(offset >= 512 && count >= 0 && offset + count <= std::ssize(bytes));
      });
}

void record_mds_index(std::string_view bytes) {
  const auto index = data::detail::parse_mds_index(std::string(bytes));
  must_hold(!index.shards.empty() && !index.columns.empty());
  for (const auto& shard : index.shards)
    must_hold(shard.samples >= 0 && shard.raw.bytes >= 0 && !shard.raw.name.starts_with('/'));
}

void record_mds_shard(std::string_view bytes) {
  static const std::vector<data::detail::MdsColumn> columns = [] {
    std::vector<data::detail::MdsColumn> all;
    for (const char* encoding :
         {"int", "ndarray", "ndarray:float32:2", "str", "str_float", "uint8"})
      all.push_back(data::detail::mds_column(encoding, encoding));
    return all;
  }();
  if (bytes.empty()) return;
  const int64_t samples = static_cast<unsigned char>(bytes[0]);
  const auto offsets = data::detail::parse_mds_table(bytes, samples, std::ssize(bytes));
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto values = data::detail::split_mds_sample(
        columns, bytes.substr(offsets[i], offsets[i + 1] - offsets[i]));
    for (size_t c = 0; c < columns.size(); ++c)
      must_hold(data::detail::decode_mds(columns[c], values[c]).num_bytes() <=
                std::max<int64_t>(8, std::ssize(values[c])));
  }
}

// 8 bytes of how much a shard says it becomes, one of how it is packed, then it itself.
void record_mds_packed(std::string_view bytes) {
  constexpr size_t kHead = 9;
  if (bytes.size() < kHead) return;
  int64_t claimed = 0;
  std::memcpy(&claimed, bytes.data(), sizeof claimed);
  const std::string_view packed = bytes.substr(kHead);
  const nlohmann::json shard = {{"format", "mds"},
                                {"version", 2},
                                {"column_names", {"a"}},
                                {"column_encodings", {"int"}},
                                {"column_sizes", {8}},
                                {"samples", 2},
                                {"compression", bytes[8] % 2 == 0 ? "gz" : "zstd"},
                                {"raw_data", {{"basename", "raw"}, {"bytes", claimed}}},
                                {"zip_data", {{"basename", "packed"}, {"bytes", packed.size()}}}};
  const std::string index = nlohmann::json{{"version", 2}, {"shards", {shard}}}.dump();
  const auto source =
      data::detail::mds_source("", {.files = std::make_shared<PackedShard>(index, packed)});
  for (int64_t row = 0; row < source->num_rows(); ++row)
    must_hold(source->read_row(row).columns.at(0).num_bytes() == 8);
}

// What another process has written into memory or a file that samples are kept in.
void record_kept_sample(std::string_view bytes) {
  static const std::vector<Column> columns{{"x", DType::float32, {kAnySize, 2}},
                                           {"s", DType::uint8, {kAnySize}},
                                           {"y", DType::int64, {}}};
  const Array memory = bytes_of(bytes);
  auto* const begin = static_cast<std::byte*>(memory.data());
  const auto sample = data::detail::unpacked(columns, {begin, bytes.size()}, memory.owner());
  if (!sample) return;
  must_hold(data::detail::packed_bytes(*sample) <= std::ssize(bytes));
  for (const Array& column : sample->columns) {
    const auto* const at = static_cast<const std::byte*>(column.data());
    must_hold(at >= begin && column.num_bytes() >= 0 &&
              column.num_bytes() <= std::ssize(bytes) - (at - begin));
  }
}

void record_npy_header(std::string_view bytes) {
  const NpyHeader header = parse_npy_header(std::as_bytes(std::span(bytes)), "fuzzer");
  must_hold(header.num_elements >= 0 && header.num_bytes() >= header.num_elements);
  must_hold(header.data_offset <= std::ssize(bytes));
}

void record_safetensors(std::string_view bytes) {
  const Array memory = bytes_of(bytes);
  const MappedFile file{{static_cast<const std::byte*>(memory.data()), bytes.size()},
                        memory.owner()};
  int64_t all = 0;
  for (const NamedArray& entry : parse_safetensors(file, "fuzzer").arrays)
    all += entry.array.num_bytes();
  must_hold(all <= std::ssize(bytes));
}

}  // namespace tutti::test
