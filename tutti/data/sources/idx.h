/// IDX, the format of MNIST and its kin: one array a file, plain or gzipped.
///
///   auto train = idx("train-images-idx3-ubyte.gz");  // and train-labels-idx1-ubyte.gz beside it
///
/// docs/formats/idx.md describes the bytes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

namespace tutti::data {

/// Reads one file into memory: uint8, int8, int16, int32, float32 or float64, of one dimension or
/// more. Gzip is known by its content, not by the name. Throws DataError: wrong magic, no known
/// type, truncated or too long (both sizes are named), and those of Files.
Array read_idx(const std::filesystem::path& path, const FilesHandle& files = local_files());

struct IdxOptions {
  /// Empty: the file beside `images` that is named as MNIST's are: train-images-idx3-ubyte.gz has
  /// train-labels-idx1-ubyte.gz or train-labels-idx1-ubyte.
  std::filesystem::path labels = {};
  bool labelled = true;  ///< false: no labels are looked for, there is no column y
  /// uint8 [rows, height, width] becomes float32 [1, height, width] in 0..1; false: all elements
  /// stay as they lie there.
  bool scale = true;
  /// Names by label. Empty: "0", "1", ... up to the largest label that is there.
  std::vector<std::string> classes = {};
  FilesHandle files = local_files();
};

/// Opens a file of images (or whatever the first dimension counts) and that of their labels.
///
/// Samples are x, as above, and y int64 []. Both files are read and checked here, and stay in
/// memory as they are: scaling is done when a batch is read. Throws DataError: those of
/// read_idx(); labels that are no list of whole numbers >= 0, that are not as many as there are
/// images, or beyond `classes`; no file of labels (what was looked for is named).
Dataset idx(const std::filesystem::path& images, IdxOptions options = {});

}  // namespace tutti::data
