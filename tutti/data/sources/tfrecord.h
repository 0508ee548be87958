/// TensorFlow's record files, and the tf.train.Example in them.
///
///   auto train = tfrecord("train-*.tfrecord", {.features = {
///       {.name = "image", .dtype = DType::uint8, .shape = {kAnySize}},
///       {.name = "label", .dtype = DType::int64}}});
///
/// A file has no table of its records: its index is made once and kept beside it
/// (docs/formats/record_index.md). One packed by gzip or zlib is unpacked into memory
/// and stays there.
/// Thread rule: free functions; the Dataset may be read by any thread.
#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/records.h"

namespace tutti::data {

/// One feature of an Example, which becomes one column.
struct Feature {
  std::string name;  ///< as in the Example, and of the column
  /// int64 and float32: a list of such. uint8: the bytes of one string.
  DType dtype = DType::float32;
  /// {}: one value; {28, 28}: 784, row by row; {kAnySize}: as many as there are, and
  /// {kAnySize, 3}: triples. A string: {kAnySize}, or {28, 28} where it holds just these bytes.
  std::vector<int64_t> shape = {};
  /// What every element is where an Example has no such feature: an int64_t or a double; of
  /// uint8 [?] the string. Unset: that is a DataError.
  std::variant<std::monostate, int64_t, double, std::string> missing = {};
};

struct TfrecordOptions {
  std::vector<Feature> features;  ///< empty: a record is one column "record", uint8 [?], as it is
  std::filesystem::path index_folder;  ///< where indexes are kept; empty: beside their files
  FilesHandle files = local_files();
};

/// The records of files as rows, in the order of files and of records in them.
///
/// paths  a folder stands for its *.tfrecord, *.tfrecords, *.tfrec, these with .gz, and files
///        named like train-00001-of-00008
///
/// Throws UsageError for features that make no sense and paths that stand for no file; DataError,
/// with file and byte, for a file that is cut off or is none of records, when its index is made.
/// Reading a row throws DataError, with file, record and byte, for a wrong checksum, bytes that are
/// no Example, a feature that is missing, of another kind or of another number of values.
Dataset tfrecord(const Paths& paths, TfrecordOptions options = {});

/// The features of the first record of the first file: kinds as they are, one value as {}, several
/// as {n}, a string as {kAnySize}, and so what has another number of values in one of the 99
/// records behind it; sorted by name. DataError when it is no Example.
std::vector<Feature> tfrecord_features(const Paths& paths,
                                       const FilesHandle& files = local_files());

/// Makes the indexes that are not there, or older than their files, several at once. One packed by
/// gzip has none.
std::vector<IndexReport> index_tfrecord(const Paths& paths, const IndexOptions& options = {});

/// The features that write_tfrecord() makes of columns. UsageError for float64, uint64 and 16-bit
/// floats, which an Example cannot hold.
std::vector<Feature> features_of(const std::vector<Column>& columns);

/// Writes samples as Examples into shard-00000.tfrecord, ... of a folder, made where it is not
/// there: integers and bool as int64, float32, uint8 as one string. UsageError when the folder has
/// such files already; DataError for a sample that is not as `columns` say; WriteError.
Written write_tfrecord(const std::filesystem::path& folder, const std::vector<Column>& columns,
                       const NextSample& next, const WriteOptions& options = {});

/// Everything that is wrong in files: lengths and checksums, and, with `features`, each Example.
/// After a wrong length nothing more can be said of its file.
std::vector<Finding> verify_tfrecord(const Paths& paths, const std::vector<Feature>& features = {},
                                     const VerifyOptions& options = {});

}  // namespace tutti::data
