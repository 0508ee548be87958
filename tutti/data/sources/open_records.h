/// Records of any format with all that is in them, and photos with labels among them.
///
///   auto all = open_records("shards");                     // every column
///   auto train = photo_records("shards", {.label = "cls"});  // x, y: as image_folder() gives them
///
/// The formats are tfrecord.h, webdataset.h and mds.h; recognise() tells which one it is.
/// Thread rule: free functions; a Dataset may be read by any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/records.h"

namespace tutti::data {

/// What can be read of the records at `path`, by name; of a tar "jpg;png" where samples have one
/// of both. Throws UsageError for what is no records, and what the format's own function does.
std::vector<std::string> record_columns(const std::filesystem::path& path,
                                        const FilesHandle& files = local_files());

/// These columns of the records at `path`; {}: all. Throws as record_columns().
Dataset open_records(const std::filesystem::path& path,
                     const std::vector<std::string>& columns = {},
                     const FilesHandle& files = local_files());

struct PhotoColumns {
  std::vector<std::string> images;  ///< those that hold JPEG, PNG, WebP or BMP
  std::vector<std::string> labels;  ///< those of one whole number: each may be the label
  std::vector<std::string> others;

  std::string to_string() const;  ///< "image (a photo), label (a whole number), name"
};

/// What the first samples hold.
PhotoColumns photo_columns(const std::filesystem::path& path,
                           const FilesHandle& files = local_files());

struct PhotoRecordsOptions {
  std::string label = {};  ///< the column; empty: the only one of one whole number
  /// By label. Empty: those that <label>.labels.txt beside the records names, a line each, else
  /// "0", "1", ... up to the largest label, for which all labels are read. Where both are there,
  /// and these are more than numbers, labels are those of the names: the file may list some of
  /// them, in another order.
  std::vector<std::string> classes = {};
  FilesHandle files = local_files();
};

/// Photos with labels. Samples are x uint8 [?], the photo's bytes, and y int64 [].
///
/// Throws UsageError, with the columns that are there, where none or more than one is a photo, or
/// could be the label; DataError for one class alone, a negative label, a name in
/// <label>.labels.txt that is none of `classes`, and when a sample is read whose label is none.
Dataset photo_records(const std::filesystem::path& path, const PhotoRecordsOptions& options = {});

/// The names in <label>.labels.txt beside the records at `path`; empty: there is no such file.
std::vector<std::string> label_names(const std::filesystem::path& path, const std::string& label,
                                     const FilesHandle& files = local_files());

/// How that file is called.
std::string labels_file(const std::string& label);

}  // namespace tutti::data
