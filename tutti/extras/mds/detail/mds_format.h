/// What index.json and a shard of MDS say, as functions of bytes.
///
/// A shard: number of samples n | n + 1 offsets of samples and of the end | its settings as JSON |
/// samples. A sample: the length of each value whose encoding has none | the values. All uint32,
/// little-endian. Thread rule: free functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/sample.h"

namespace tutti::data::detail {

enum class MdsKind { number, bytes, decimal, ndarray };

struct MdsColumn {
  std::string name;
  std::string encoding;  ///< as it is written: "ndarray:float32:3,4"
  MdsKind kind = MdsKind::bytes;
  std::optional<DType> dtype;                 ///< unset: each value of an ndarray says its own
  std::optional<std::vector<int64_t>> shape;  ///< the same
  int64_t bytes = -1;                         ///< of a value; -1: each says its own

  bool operator==(const MdsColumn&) const = default;
};

/// Throws UsageError for an encoding that is not read, DataError for one that is damaged.
MdsColumn mds_column(std::string name, std::string encoding);

struct MdsFile {
  std::string name;  ///< relative to the folder, not out of it
  int64_t bytes = 0;
  std::map<std::string, std::string> hashes;  ///< in hex, by algorithm
};

struct MdsShard {
  int64_t samples = 0;
  MdsFile raw;
  std::optional<MdsFile> packed;
  std::string compression;  ///< "zstd:3", "gz", ...; empty: none
};

struct MdsIndex {
  std::vector<MdsColumn> columns;  ///< the same in all shards
  std::vector<MdsShard> shards;
};

/// Throws DataError with the reason and what is expected; UsageError as mds_column().
MdsIndex parse_mds_index(const std::string& json);

/// The n + 1 offsets at the start of a shard of `shard_bytes`. Throws DataError where its number of
/// samples is not `samples` or the offsets do not rise within the shard.
std::vector<uint32_t> parse_mds_table(std::string_view begin, int64_t samples, int64_t shard_bytes);

/// The values of a sample, by column. Throws DataError where lengths do not fit.
std::vector<std::string_view> split_mds_sample(const std::vector<MdsColumn>& columns,
                                               std::string_view sample);

/// A value as an array. Throws DataError.
Array decode_mds(const MdsColumn& column, std::string_view value);

/// "int64", "bytes", "ndarray:float32:3,4" for a column. UsageError for bfloat16.
std::string mds_encoding_of(const Column& column);

/// The bytes of a value under its column's encoding. DataError for an empty ndarray.
std::string encode_mds(const MdsColumn& column, const Array& array);

}  // namespace tutti::data::detail
