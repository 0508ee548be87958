/// MosaicML Streaming's datasets: a folder of shards, each with a table of its samples.
///
///   auto train = mds("c4/train", {.columns = {"tokens"}});
///
/// Thread rule: free functions; the Dataset may be read by any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/records.h"

namespace tutti::data {

struct MdsOptions {
  std::vector<std::string> columns;  ///< by name, in this order; empty: all, as index.json has them
  /// Packed shards are unpacked as a whole and kept up to so many bytes, one at least. Where they
  /// all fit, a shuffled epoch unpacks each once.
  int64_t cache_bytes = 1 << 30;
  FilesHandle files = local_files();
};

/// The samples of a folder with an index.json (version 2) as rows, in the order of shards there.
///
/// Encodings: int and int8 ... int64, uint8 ... uint64, float16 ... float64 as such, []; str_int
/// and str_float as int64 and float64; ndarray as an array, whose dtype and number of sizes are,
/// where the encoding does not say them, those of the first sample; str, bytes, str_decimal, json,
/// jpeg and png as uint8 [?]. Shards as they are, or packed by zstd or gz; one that lies there
/// unpacked is read as it is.
///
/// Throws UsageError for a column that is not there, an encoding (pkl, pil) or packing that is not
/// read; DataError, with file and what is expected, for an index.json that is damaged, a shard that
/// is not there or of another size. Reading a row throws DataError with shard, sample and byte.
Dataset mds(const std::filesystem::path& folder, MdsOptions options = {});

/// Writes samples into shard.00000.mds, ... and index.json, with SHA-256 of each shard, of a folder
/// made where it is not there: numbers as such (bool as uint8), uint8 [?] as bytes, others as
/// ndarray. UsageError when the folder has a dataset already or for bfloat16; DataError for a
/// sample that is not as `columns` say, or an empty array; WriteError.
Written write_mds(const std::filesystem::path& folder, const std::vector<Column>& columns,
                  const NextSample& next, const WriteOptions& options = {});

/// Everything that is wrong in a folder: shards that are missing or of another size, hashes of
/// index.json that OpenSSL knows (others are named in a warning), tables, and every value.
std::vector<Finding> verify_mds(const std::filesystem::path& folder,
                                const VerifyOptions& options = {});

}  // namespace tutti::data
