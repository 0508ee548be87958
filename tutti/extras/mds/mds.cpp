#include "tutti/data/sources/mds.h"

#include <openssl/evp.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/base/json.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/data/detail/gzip.h"
#include "tutti/data/detail/in_parallel.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/keyed_cache.h"
#include "tutti/data/sources/detail/record_sources.h"
#include "tutti/data/sources/detail/shard_writer.h"
#include "tutti/extras/mds/detail/mds_format.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using detail::MdsColumn;
using detail::MdsIndex;
using detail::MdsShard;

MdsIndex read_mds_index(const fs::path& folder, const Files& files) {
  const fs::path path = folder / "index.json";
  const Array bytes = files.read(path);
  const auto placed = [&](const Error& error) {
    return fmt::format("{}: {}", path.string(), error.what());
  };
  try {
    return detail::parse_mds_index(std::string(text_of(bytes)));
  } catch (const UsageError& error) {
    throw UsageError(placed(error));
  } catch (const DataError& error) {
    throw DataError(placed(error));
  }
}

[[noreturn]] void fail_size_of(const fs::path& path, int64_t got, int64_t expected) {
  throw DataError(
      fmt::format("{}: has {} bytes, expected {} as index.json says\n"
                  "  fetch the file again",
                  path.string(), got, expected));
}

Array unpack_zstd(const Array& packed, int64_t bytes, const std::string& where) {
  Array raw = make_array(DType::uint8, {bytes});
  const size_t got = ZSTD_decompress(raw.data(), static_cast<size_t>(bytes), packed.data(),
                                     static_cast<size_t>(packed.num_bytes()));
  if (ZSTD_isError(got) != 0)
    throw DataError(fmt::format("{}: cannot be unpacked to {} bytes: {}\n  fetch the file again",
                                where, bytes, ZSTD_getErrorName(got)));
  if (got != static_cast<size_t>(bytes))
    throw DataError(fmt::format("{}: unpacks to {} bytes, expected {}", where, got, bytes));
  return raw;
}

Array unpack_gzip(const Array& packed, int64_t bytes, const std::string& where) {
  Array raw = make_array(DType::uint8, {bytes + 1});
  detail::GzipReader reader(std::as_bytes(packed.as<uint8_t>()), where);
  const auto got = static_cast<int64_t>(reader.read(std::as_writable_bytes(raw.as<uint8_t>())));
  if (got != bytes)
    throw DataError(fmt::format("{}: unpacks to {} bytes, expected {}", where,
                                got > bytes ? "more" : std::to_string(got), bytes));
  return raw.rows(0, bytes);
}

Array unpacked_shard(const Files& files, const fs::path& folder, const MdsShard& shard) {
  const fs::path path = folder / shard.packed->name;
  const Array packed = files.read(path);
  detail::require_unpackable(shard.raw.bytes, packed.num_bytes(), path.string());
  const bool zstd = shard.compression.starts_with("zstd");
  return (zstd ? unpack_zstd : unpack_gzip)(packed, shard.raw.bytes, path.string());
}

void require_known_packing(const MdsShard& shard) {
  const std::string name = shard.compression.substr(0, shard.compression.find(':'));
  if (name != "zstd" && name != "gz")
    throw UsageError(
        fmt::format("shard {} is packed by \"{}\"; read are zstd and gz\n  write the "
                    "dataset again with compression=\"zstd\"",
                    shard.packed->name, shard.compression));
}

// A shard as it lies there, with the table of its samples.
struct OpenShard {
  fs::path path;
  bool packed = false;
  FileInfo info;
  std::vector<uint32_t> offsets;  // of a packed one: made when it is unpacked
};

OpenShard open_shard(const Files& files, const fs::path& folder, const MdsShard& shard) {
  OpenShard open{.path = folder / shard.raw.name};
  try {
    open.info = files.info(open.path);
  } catch (const DataError&) {
    if (!shard.packed) throw;
    require_known_packing(shard);
    open.packed = true;
    open.path = folder / shard.packed->name;
    open.info = files.info(open.path);
  }
  const int64_t expected = open.packed ? shard.packed->bytes : shard.raw.bytes;
  if (open.info.bytes != expected) fail_size_of(open.path, open.info.bytes, expected);
  return open;
}

std::vector<uint32_t> table_of(const MdsShard& shard, const fs::path& path,
                               std::string_view begin) {
  try {
    return detail::parse_mds_table(begin, shard.samples, shard.raw.bytes);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

class MdsSource final : public SampleSource {
 public:
  MdsSource(fs::path folder, const MdsOptions& options)
      : folder_(std::move(folder)),
        files_(options.files),
        index_(read_mds_index(folder_, *files_)),
        shards_(index_.shards.size()),
        unpacked_(options.cache_bytes) {
    detail::in_parallel(std::ssize(shards_), [&](int64_t i) { open(static_cast<size_t>(i)); });
    for (size_t i = 0; i < shards_.size(); ++i)
      rows_.add(shards_[i].info, index_.shards[i].samples);
    if (num_rows() == 0) throw DataError(fmt::format("{}: there is no sample", folder_.string()));
    choose(options.columns);
    say_packed(options.cache_bytes);
    for (const size_t c : chosen_) columns_.push_back(column_of(c));
  }

  int64_t num_rows() const override { return rows_.num_rows(); }
  const std::vector<Column>& columns() const override { return columns_; }

  Sample read_row(int64_t row) const override {
    const Array bytes = read_sample(row);
    try {
      const auto values = detail::split_mds_sample(index_.columns, text_of(bytes));
      Sample sample;
      for (size_t i = 0; i < chosen_.size(); ++i) {
        const MdsColumn& column = index_.columns[chosen_[i]];
        Array array = detail::decode_mds(column, values[chosen_[i]]);
        if (array.dtype() != columns_[i].dtype || array.shape().size() != columns_[i].shape.size())
          throw DataError(fmt::format("column \"{}\" is {}, expected {} as in the first sample",
                                      column.name, array.to_string(), columns_[i].to_string()));
        sample.columns.push_back(std::move(array));
      }
      return sample;
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where(row), error.what()));
    }
  }

  std::string where(int64_t row) const override {
    const auto [shard, sample] = rows_.find(row);
    const OpenShard& open = shards_[shard];
    return open.packed ? fmt::format("{}, sample {}", open.path.string(), sample)
                       : fmt::format("{}, sample {} (byte {})", open.path.string(), sample,
                                     open.offsets[static_cast<size_t>(sample)]);
  }
  std::string fingerprint() const override { return rows_.fingerprint(columns_); }
  std::vector<int64_t> first_rows_of_files() const override { return rows_.first_rows(); }

 private:
  void open(size_t i) {
    const MdsShard& shard = index_.shards[i];
    shards_[i] = open_shard(*files_, folder_, shard);
    if (shards_[i].packed) return;
    const int64_t table = std::min(shard.raw.bytes, (shard.samples + 2) * int64_t{4});
    shards_[i].offsets =
        table_of(shard, shards_[i].path, text_of(files_->read(shards_[i].path, 0, table)));
  }

  void choose(const std::vector<std::string>& names) {
    std::vector<std::string> known;
    for (const MdsColumn& column : index_.columns) known.push_back(column.name);
    for (const std::string& name : names.empty() ? known : names) {
      const auto found = std::ranges::find(known, name);
      if (found == known.end())
        throw UsageError(
            fmt::format("{}: {}", folder_.string(), unknown_message("column", name, known)));
      chosen_.push_back(static_cast<size_t>(found - known.begin()));
    }
  }

  void say_packed(int64_t cache_bytes) const {
    int64_t count = 0, bytes = 0;
    for (size_t i = 0; i < shards_.size(); ++i)
      if (shards_[i].packed) ++count, bytes += index_.shards[i].raw.bytes;
    if (bytes > cache_bytes)
      log(LogLevel::warning,
          "{}: {} of {} shards are packed and take {} bytes unpacked, of which {} are kept: rows "
          "in "
          "shuffled order unpack shards again and again\n  unpack them once (unzstd) or, in "
          "a program, raise `cache_bytes`",
          folder_.string(), count, shards_.size(), bytes, cache_bytes);
  }

  // What an encoding does not say of its arrays, the first sample does.
  Column column_of(size_t c) const {
    const MdsColumn& column = index_.columns[c];
    if (column.kind == detail::MdsKind::bytes) return {column.name, DType::uint8, {kAnySize}};
    if (column.kind != detail::MdsKind::ndarray) return {column.name, *column.dtype, {}};
    if (column.shape) return {column.name, *column.dtype, *column.shape};
    const Array sample = read_sample(0);
    try {
      const auto values = detail::split_mds_sample(index_.columns, text_of(sample));
      const Array first = detail::decode_mds(column, values[c]);
      return {column.name, first.dtype(), std::vector<int64_t>(first.shape().size(), kAnySize)};
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where(0), error.what()));
    }
  }

  struct Unpacked {
    Array bytes;
    std::vector<uint32_t> offsets;
  };

  Array read_sample(int64_t row) const {
    const auto [i, sample] = rows_.find(row);
    const auto at = static_cast<size_t>(sample);
    const OpenShard& open = shards_[i];
    if (!open.packed)
      return files_->read(open.path, open.offsets[at],
                          int64_t{open.offsets[at + 1]} - int64_t{open.offsets[at]});
    const auto whole = unpacked_.get(static_cast<int64_t>(i), [&, i = i] {
      auto made = std::make_shared<Unpacked>();
      made->bytes = unpacked_shard(*files_, folder_, index_.shards[i]);
      made->offsets = table_of(index_.shards[i], open.path, text_of(made->bytes));
      return std::pair(std::shared_ptr<const Unpacked>(made), made->bytes.num_bytes());
    });
    return whole->bytes.rows(whole->offsets[at], whole->offsets[at + 1]);
  }

  fs::path folder_;
  FilesHandle files_;
  MdsIndex index_;
  std::vector<OpenShard> shards_;
  detail::FileRows rows_;
  std::vector<size_t> chosen_;  // places in index_.columns
  std::vector<Column> columns_;
  mutable detail::KeyedCache<Unpacked> unpacked_;
};

// The digest by an algorithm as Streaming names it; nothing where OpenSSL has none.
std::optional<std::string> digest_by(const std::string& algorithm, std::string_view bytes) {
  std::string name = algorithm == "blake2b"   ? "BLAKE2B512"
                     : algorithm == "blake2s" ? "BLAKE2S256"
                                              : algorithm;
  std::ranges::replace(name, '_', '-');  // sha3_256
  const EVP_MD* kind = EVP_get_digestbyname(name.c_str());
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int count = 0;
  if (kind == nullptr ||
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &count, kind, nullptr) != 1)
    return std::nullopt;
  std::string hex;
  for (unsigned int i = 0; i < count; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

// Checks one file of a folder; the reasons alone.
void verify_hashes(const detail::MdsFile& file, std::string_view bytes, const auto& add) {
  if (std::ssize(bytes) != file.bytes)
    add(-1, -1,
        fmt::format("has {} bytes, expected {} as index.json says", bytes.size(), file.bytes));
  for (const auto& [algorithm, expected] : file.hashes) {
    const auto digest = digest_by(algorithm, bytes);
    if (!digest)
      log_once("hash " + algorithm, LogLevel::warning,
               "hashes {} of index.json are not checked: OpenSSL has no such", algorithm);
    else if (*digest != expected)
      add(-1, -1, fmt::format("its {} is {}, expected {}", algorithm, *digest, expected));
  }
}

void verify_samples(const MdsIndex& index, const MdsShard& shard, std::string_view bytes,
                    const auto& add) {
  const std::vector<uint32_t> offsets =
      detail::parse_mds_table(bytes, shard.samples, std::ssize(bytes));
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    try {
      const auto values = detail::split_mds_sample(
          index.columns, bytes.substr(offsets[i], offsets[i + 1] - offsets[i]));
      for (size_t c = 0; c < values.size(); ++c)
        static_cast<void>(detail::decode_mds(index.columns[c], values[c]));
    } catch (const DataError& error) {
      add(offsets[i], static_cast<int64_t>(i), error.what());
    }
  }
}

void verify_shard(const fs::path& folder, const MdsIndex& index, const MdsShard& shard,
                  const Files& files, std::vector<Finding>& found) {
  fs::path path = folder / shard.raw.name;
  const auto add = [&](int64_t byte, int64_t record, std::string what) {
    found.push_back({.file = path, .byte = byte, .record = record, .what = std::move(what)});
  };
  try {
    Array raw;
    try {
      raw = files.read(path);
    } catch (const DataError&) {
      if (!shard.packed) throw;
      require_known_packing(shard);
      path = folder / shard.packed->name;
      verify_hashes(*shard.packed, text_of(files.read(path)), add);
      raw = unpacked_shard(files, folder, shard);
    }
    verify_hashes(shard.raw, text_of(raw), add);
    verify_samples(index, shard, text_of(raw), add);
  } catch (const Error& error) {
    add(-1, -1, error.what());
  }
}

Json mds_settings(const std::vector<MdsColumn>& columns, int64_t shard_bytes) {
  Json said{{"version", 2},
            {"format", "mds"},
            {"compression", nullptr},
            {"hashes", {"sha256"}},
            {"size_limit", shard_bytes}};
  for (const MdsColumn& column : columns) {
    said["column_names"].push_back(column.name);
    said["column_encodings"].push_back(column.encoding);
    said["column_sizes"].push_back(column.bytes < 0 ? Json(nullptr) : Json(column.bytes));
  }
  return said;
}

std::string text_of_settings(const Json& settings) try {
  return dump_json(settings);
} catch (const JsonError& error) {
  throw DataError(fmt::format("MDS: the name of a column is no UTF-8: {}", error.what()));
}

void append_uint32(std::string& bytes, int64_t value) {
  const auto number = static_cast<uint32_t>(value);
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Samples into shards, and what index.json says of them.
class MdsWriter {
 public:
  MdsWriter(const fs::path& folder, const std::vector<Column>& columns, const WriteOptions& options)
      : folder_(folder), writer_(folder, "shard.{:05d}.mds", options) {
    if (is_there(folder / "index.json"))
      throw UsageError(fmt::format("{}: is there already\n  name a folder without, or remove it",
                                   (folder / "index.json").string()));
    for (const Column& column : columns)
      columns_.push_back(detail::mds_column(column.name, detail::mds_encoding_of(column)));
    settings_ = mds_settings(columns_, options.shard_bytes);
    settings_text_ = text_of_settings(settings_);
  }

  void add(const Sample& sample) {
    std::string lengths, values;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string value = detail::encode_mds(columns_[c], sample.columns[c]);
      if (columns_[c].bytes < 0) append_uint32(lengths, std::ssize(value));
      values += value;
    }
    const int64_t bytes = std::ssize(lengths) + std::ssize(values);
    if (writer_.is_full(bytes, head_bytes(1))) finish_shard();
    if (head_bytes(1) + bytes > kMostShardBytes)
      throw DataError(
          fmt::format("a sample of {} bytes: a shard holds up to {}", bytes, kMostShardBytes));
    writer_.shard() += lengths + values;
    ends_.push_back(std::ssize(writer_.shard()));
    writer_.sample_done();
  }

  Written done() {
    if (!ends_.empty()) finish_shard();
    const Json index{{"shards", shards_}, {"version", 2}};
    write_file_atomically(folder_ / "index.json", dump_json(index));
    return writer_.done();
  }

 private:
  static constexpr int64_t kMostShardBytes = std::numeric_limits<uint32_t>::max();

  // Of the shard's head, with `more` samples than there are.
  int64_t head_bytes(int64_t more) const {
    return 4 * (std::ssize(ends_) + more + 2) + std::ssize(settings_text_);
  }

  void finish_shard() {
    const int64_t begin = head_bytes(0);
    std::string head;
    append_uint32(head, std::ssize(ends_));
    append_uint32(head, begin);
    for (const int64_t end : ends_) append_uint32(head, begin + end);
    head += settings_text_;
    Sha256 digest;
    digest.update(head);
    digest.update(writer_.shard());
    Json shard = settings_;
    shard["samples"] = std::ssize(ends_);
    shard["zip_data"] = nullptr;
    shard["raw_data"] = {{"basename", writer_.next_path().filename().string()},
                         {"bytes", begin + ends_.back()},
                         {"hashes", {{"sha256", digest.hex()}}}};
    shards_.push_back(std::move(shard));
    ends_.clear();
    writer_.finish_shard(head);
  }

  fs::path folder_;
  detail::ShardWriter writer_;
  std::vector<MdsColumn> columns_;
  Json settings_;
  std::string settings_text_;
  std::vector<int64_t> ends_;  // of the shard's samples, from the first on
  Json shards_ = Json::array();
};

}  // namespace

namespace detail {

std::shared_ptr<const Source> mds_source(const fs::path& folder, MdsOptions options) {
  return std::make_shared<MdsSource>(folder, options);
}

std::vector<std::string> mds_encodings(const fs::path& folder, const Files& files) {
  std::vector<std::string> encodings;
  for (const MdsColumn& column : read_mds_index(folder, files).columns)
    encodings.push_back(column.encoding);
  return encodings;
}

}  // namespace detail

Dataset mds(const fs::path& folder, MdsOptions options) {
  return Dataset(detail::mds_source(folder, std::move(options)));
}

Written write_mds(const fs::path& folder, const std::vector<Column>& columns,
                  const NextSample& next, const WriteOptions& options) {
  MdsWriter writer(folder, columns, options);
  int64_t number = 0;
  for (auto sample = next(); sample; sample = next()) {
    detail::require_sample(*sample, columns, number++);
    writer.add(*sample);
  }
  return writer.done();
}

std::vector<Finding> verify_mds(const fs::path& folder, const VerifyOptions& options) {
  std::vector<Finding> found;
  MdsIndex index;
  try {
    index = read_mds_index(folder, *options.files);
  } catch (const Error& error) {
    return {{.file = folder / "index.json", .what = error.what()}};
  }
  int64_t all_bytes = 0, done_bytes = 0;
  for (const MdsShard& shard : index.shards) all_bytes += shard.raw.bytes;
  for (const MdsShard& shard : index.shards) {
    verify_shard(folder, index, shard, *options.files, found);
    done_bytes += shard.raw.bytes;
    if (options.progress) options.progress(done_bytes, all_bytes);
  }
  return found;
}

}  // namespace tutti::data
