#include "tests/fuzz/record_formats.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/detail/example.h"
#include "tutti/data/sources/detail/mds_format.h"
#include "tutti/data/sources/detail/record_index.h"
#include "tutti/data/sources/detail/tar.h"
#include "tutti/data/sources/tfrecord.h"

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

}  // namespace tutti::test
