/// What the formats of records have in common: what their writers and checkers are told and say.
///
/// Formats: tfrecord.h, webdataset.h, mds.h, parquet.h. Each has a function that reads files as a
/// Dataset, and, parquet apart, write_NAME() and verify_NAME(); those without a table of their
/// records have index_NAME().
/// Thread rule: plain values; callbacks are called in the thread of the call, one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/files.h"
#include "tutti/data/sample.h"

namespace tutti::data {

/// Files of records by path, pattern or folder:
///
///   tfrecord("train.tfrecord")   webdataset("shards/*.tar")   webdataset("shards/{000..146}.tar")
///
/// A pattern (*, ?, [a-z] in the last part) and a folder stand for their files sorted by the bytes
/// of names, of a folder those whose names end as the format's do; {000..146} counts.
struct Paths {
  // NOLINTBEGIN(google-explicit-constructor): a path is Paths
  Paths(const char* path) : list{path} {}
  Paths(const std::string& path) : list{path} {}
  Paths(const std::filesystem::path& path) : list{path} {}
  Paths(std::vector<std::filesystem::path> paths) : list(std::move(paths)) {}
  Paths(std::initializer_list<std::filesystem::path> paths) : list(paths) {}
  // NOLINTEND(google-explicit-constructor)

  std::vector<std::filesystem::path> list;
};

/// The next sample to write; nothing at the end.
using NextSample = std::function<std::optional<Sample>()>;

struct WriteProgress {
  int64_t samples = 0;
  int64_t bytes = 0;   ///< of data in finished and unfinished shards
  int64_t shards = 0;  ///< finished
};

struct WriteOptions {
  /// A shard ends before the sample that would make it larger; one sample may be larger alone. It
  /// is put together in memory. In [1, 2^32 - 1].
  int64_t shard_bytes = 64 << 20;
  std::function<void(const WriteProgress&)> progress;  ///< after each shard and 1000 samples
};

struct Written {
  std::vector<std::filesystem::path> files;  ///< the shards, in order
  int64_t samples = 0;
  int64_t bytes = 0;
};

/// Something wrong in a file.
struct Finding {
  std::filesystem::path file;
  int64_t byte = -1;    ///< where; -1: the file as a whole
  int64_t record = -1;  ///< 0-based in its file; -1: none in particular
  std::string what;

  std::string to_string() const;  ///< "a.tar, record 3 (byte 1024): ..."
};

struct VerifyOptions {
  FilesHandle files = local_files();
  /// Called now and then with the bytes checked so far, and all there are.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> progress;
};

struct IndexOptions {
  bool check = false;                  ///< only looks: nothing is written
  std::filesystem::path index_folder;  ///< where indexes are kept; empty: beside their files
  FilesHandle files = local_files();
  /// Called now and then, in any thread, one at a time.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> progress;
};

enum class IndexState { up_to_date, missing, older, damaged, not_needed };

/// The index of one file.
struct IndexReport {
  std::filesystem::path file;
  std::filesystem::path index;
  IndexState before = IndexState::missing;  ///< how it was found
  std::string why;                          ///< of one that is older or damaged, or not needed
  bool made = false;                        ///< now
  int64_t records = 0;  ///< of one that counts, or was made; of a tar its members
  std::string error;    ///< why none could be made: the file is damaged; empty: it was
};

/// The format of an encoded photo by its first bytes: "jpg", "png", "webp", "bmp"; empty: none of
/// these.
std::string_view photo_format(std::string_view bytes) noexcept;

}  // namespace tutti::data
