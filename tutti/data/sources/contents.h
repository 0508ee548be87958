/// Records read to the last value: what checksums and lengths, which verify_NAME() checks, do not
/// say.
///
/// Thread rule: a free function; callbacks are called in the thread of the call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/data/files.h"

namespace tutti::data {

struct ContentsReport {
  int64_t samples = 0;
  std::vector<std::string> damaged;  ///< a line each: file, sample, value, and what is wrong
  std::vector<std::string> notes;  ///< a line each: values of which the bytes alone were read, ...
};

struct ContentsOptions {
  FilesHandle files = local_files();
  /// Called now and then with the samples read so far, all there are, and how many are damaged.
  std::function<void(int64_t done, int64_t all, int64_t damaged)> progress;
};

/// Reads every value of the records at `path`, on all cores: numbers and arrays as such, photos (by
/// the column's name or encoding, or the value's first bytes) decoded, JSON parsed. Damaged is what
/// cannot be read so, a sample that lacks what more than half have, and a value of another kind
/// than most have in its column. Of other values the bytes are read, and a note says so. Throws
/// UsageError for what is no records, and what the format's own function does.
ContentsReport read_contents(const std::filesystem::path& path,
                             const ContentsOptions& options = {});

}  // namespace tutti::data
