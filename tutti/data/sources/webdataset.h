/// Tar files as the library webdataset writes them: photos and what belongs to them, side by side.
///
///   auto train = webdataset("shards/{000000..000146}.tar", {.columns = {"jpg;png;jpeg", "cls"}});
///
/// Members that follow each other with the same name up to the first dot are one sample; the rest
/// of the name says what a member is. The index of a tar is made once and kept beside it
/// (docs/formats/record_index.md). Thread rule: free functions; the Dataset may be read by any
/// thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/records.h"

namespace tutti::data {

struct WebdatasetOptions {
  /// Endings without the first dot, case aside: "cls"; "seg.png"; of "jpg;png" the one that a
  /// sample has. The first names the column. By what follows the last dot,
  ///   cls, cls2, class, count, index, inx, id  is an int64 [] as decimal digits,
  ///   npy   an array of the dtype and shape that the first sample has,
  ///   else  the bytes of the member, uint8 [?].
  std::vector<std::string> columns;
  bool any_sizes = false;  ///< of npy: sizes that are not the same in all samples are kAnySize
  std::filesystem::path index_folder;  ///< where indexes are kept; empty: beside their files
  FilesHandle files = local_files();
};

/// The samples of tars as rows, in the order of tars and of samples in them.
///
/// paths  a folder stands for its *.tar
///
/// Throws UsageError for no columns, a column that no sample has, with those that are there, and a
/// packed tar, which has no random access; DataError, with tar and byte, for one that is cut off,
/// damaged, or has a member twice. Samples that lack a member are counted in a warning; reading
/// one throws DataError with tar, key and what it has.
Dataset webdataset(const Paths& paths, const WebdatasetOptions& options);

/// The endings in the first tar, the commonest first: what columns may name.
std::vector<std::string> webdataset_endings(const Paths& paths,
                                            const FilesHandle& files = local_files());

/// What the columns of all members are: the endings of the first tar in the order in which they
/// come, those of photos (jpg, png and the like) as one, "jpg;png", where no sample has two of
/// them.
std::vector<std::string> webdataset_columns(const Paths& paths,
                                            const FilesHandle& files = local_files());

/// Makes the indexes that are not there, or older than their tars, several at once.
std::vector<IndexReport> index_webdataset(const Paths& paths, const IndexOptions& options = {});

/// Writes samples into shard-00000.tar, ... of a folder, made where it is not there; keys are their
/// numbers. What a column becomes, where its name has no such ending of its own ("jpg", "x.npy"):
/// an integer NAME.cls; uint8 [?] NAME.jpg, .png, .webp or .bmp, as its content is, else NAME.bin;
/// other arrays NAME.npy. A column "jpg" that holds a PNG has member "png" there. UsageError when
/// the folder has such files already; DataError for a sample that is not as `columns` say;
/// WriteError.
Written write_webdataset(const std::filesystem::path& folder, const std::vector<Column>& columns,
                         const NextSample& next, const WriteOptions& options = {});

/// Everything that is wrong in tars: headers, ends, members twice, and, with `columns`, samples
/// that lack one. The bytes of members have no checksum. After a damaged header nothing more can be
/// said of its tar.
std::vector<Finding> verify_webdataset(const Paths& paths,
                                       const std::vector<std::string>& columns = {},
                                       const VerifyOptions& options = {});

}  // namespace tutti::data
