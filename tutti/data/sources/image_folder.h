/// A folder of photos: one sub-folder a class.
///
///   auto train = image_folder("photos/train");
///   auto held_out = image_folder("photos/val", {.classes = train.classes()});
///
/// docs/formats/image_folder.md describes the folder.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

namespace tutti::data {

struct ImageFolderOptions {
  /// Ends of names of photos, in lower case; the names' own case does not count. Empty: .jpg,
  /// .jpeg, .jpe, .jfif, .png, .webp and .bmp, and of other files the content decides.
  std::vector<std::string> extensions = {};
  /// The classes by label. Empty: the sub-folders, sorted by bytes. For folders that must number
  /// their classes as another one does: validation, test. Some of these may have no photo here.
  std::vector<std::string> classes = {};
  bool allow_one_class = false;  ///< else one class alone is an error: nothing can be learnt
  FilesHandle files = local_files();
  /// Told, in a line, what is left out; empty: a warning in the log.
  std::function<void(const std::string&)> on_left_out = {};
};

/// Opens a folder of photos.
///
/// Samples are x uint8 [?], the photo's file as it is (map(transforms::decode()) makes pixels of
/// it), and y int64 []. Unshuffled they come class by class, photos sorted by the bytes of their
/// paths in it: those in folders within a class belong to it. Hidden files are left alone; other
/// files of classes, and photos beside the classes, are left out and counted, unless `extensions`
/// chose. Names, sizes and times are read here, contents when a sample is read. Throws
///   DataError   folder missing, without classes, with one class; a class without photos where none
///               are given; one that `classes` does not list; no photo in any class's folder itself
///               (is it the folder above?): all named. When reading: a photo that vanished or
///               changed since
///   UsageError  the folder may not be read
///   IoError     it cannot be read just now
Dataset image_folder(const std::filesystem::path& folder, const ImageFolderOptions& options = {});

}  // namespace tutti::data
