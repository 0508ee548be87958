/// Quick, Draw! doodles: a folder of one .npy or .npy.gz file a class.
///
/// Each file holds uint8 [rows, 784]: 28 x 28 pixels, row by row from the top, 0 background, 255
/// ink; or [rows, 28, 28], either with an axis of 1 for the color, too. The class is the file's
/// name without its ending; labels number the classes sorted by bytes. docs/formats/quickdraw.md
/// describes the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data {

struct QuickdrawOptions {
  std::string split = "train";     ///< "train", "test" or "all"
  double test_fraction = 1.0 / 6;  ///< in [0, 1): the last rows of each class, rounded down
  int64_t limit_per_class = 0;     ///< at most so many of the split's rows a class; 0: all
  /// The classes by label; empty: those of the files, sorted by bytes. For folders that must number
  /// their classes as another one does. Some may have no file here.
  std::vector<std::string> classes = {};
};

/// Opens a folder of doodles.
///
/// Samples are x float32 [1, 28, 28] in 0..1 and y int64 []; unshuffled they come class by class.
/// Files ending in .npy are mapped, those in .npy.gz unpacked into memory; other files are left
/// alone. Every file is checked before this returns. Throws
///   DataError   folder missing or without classes; a file truncated, corrupt, of wrong magic,
///               dtype or shape; a class there twice, or none of `classes`: file, what was got,
///               what was expected
///   UsageError  unknown split (the nearest is named), a number out of range, or an empty split
Dataset quickdraw(const std::filesystem::path& folder, QuickdrawOptions options = {});

}  // namespace tutti::data
