#include "tutti/data/sources/image_folder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/data/sources/detail/photo_columns.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

struct Photo {
  int64_t label = 0;
  FileInfo file;
};

class ImageFolderSource final : public SampleSource {
 public:
  ImageFolderSource(fs::path folder, FilesHandle files, std::vector<std::string> classes,
                    std::vector<Photo> photos)
      : folder_(std::move(folder)),
        files_(std::move(files)),
        classes_(std::move(classes)),
        photos_(std::move(photos)) {}

  int64_t num_rows() const override { return std::ssize(photos_); }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<Column>& columns() const override { return detail::encoded_photo_columns(); }

  Sample read_row(int64_t row) const override {
    const Photo& photo = photos_[static_cast<size_t>(row)];
    const fs::path path = folder_ / where(row);
    detail::require_unchanged(*files_, path, photo.file);
    return {{files_->read(path, 0, photo.file.bytes), scalar(photo.label)}};
  }

  std::string where(int64_t row) const override {
    const Photo& photo = photos_[static_cast<size_t>(row)];
    return classes_[static_cast<size_t>(photo.label)] + "/" + photo.file.name;
  }

  std::string fingerprint() const override {
    std::vector<FileInfo> files;
    for (int64_t row = 0; row < num_rows(); ++row) {
      files.push_back(photos_[static_cast<size_t>(row)].file);
      files.back().name = where(row);
    }
    return fingerprint_of(files);
  }

  std::vector<int64_t> first_rows_of_files() const override {
    std::vector<int64_t> rows(photos_.size());
    std::iota(rows.begin(), rows.end(), int64_t{0});
    return rows;
  }

 private:
  fs::path folder_;
  FilesHandle files_;
  std::vector<std::string> classes_;
  std::vector<Photo> photos_;
};

std::vector<std::string> names_of_folders(const std::vector<FileInfo>& listed) {
  std::vector<std::string> names;
  for (const FileInfo& entry : listed)
    if (entry.folder) names.push_back(entry.name);
  return names;
}

// The classes by label: what lies there, held against what is expected.
std::vector<std::string> classes_in(const fs::path& folder, const std::vector<FileInfo>& listed,
                                    const ImageFolderOptions& options) {
  const std::vector<std::string> there = names_of_folders(listed);
  if (there.empty())
    throw DataError(
        fmt::format("photos in {}: got no class (files: {}), expected one sub-folder a class\n"
                    "  move the photos of each class into a folder of its name",
                    folder.string(), listed.size()));
  if (!options.classes.empty()) {
    for (const std::string& name : there)
      if (std::ranges::find(options.classes, name) == options.classes.end())
        throw DataError(fmt::format("photos in {}: {}", folder.string(),
                                    unknown_message("class", name, options.classes)));
    for (const std::string& name : options.classes)
      if (std::ranges::find(there, name) == there.end())
        throw DataError(fmt::format("photos in {}: class \"{}\" is missing; there are: {}",
                                    folder.string(), name, fmt::join(there, ", ")));
    return options.classes;
  }
  if (there.size() == 1 && !options.allow_one_class)
    throw DataError(
        fmt::format("photos in {}: got one class (\"{}\"), expected two or more: with one there "
                    "is nothing to learn\n  is the folder within, or above, the right one? In a "
                    "program allow_one_class takes it",
                    folder.string(), there[0]));
  return there;
}

[[noreturn]] void fail_empty_class(const fs::path& folder, const std::string& name,
                                   const std::vector<FileInfo>& listed,
                                   const ImageFolderOptions& options) {
  const std::vector<std::string> within = names_of_folders(listed);
  throw DataError(fmt::format(
      "photos in {}: class \"{}\" is empty: got {} other files, {} folders, expected photos ({})\n"
      "  {}",
      folder.string(), name, listed.size() - within.size(), within.size(),
      fmt::join(options.extensions, ", "),
      within.empty()
          ? "remove the folder or add photos"
          : fmt::format("its folders are not looked into: give {} if they are the classes",
                        (folder / name).string())));
}

}  // namespace

Dataset image_folder(const fs::path& folder, ImageFolderOptions options) {
  std::vector<std::string> classes = classes_in(folder, options.files->list(folder), options);
  std::vector<Photo> photos;
  for (size_t label = 0; label < classes.size(); ++label) {
    const std::vector<FileInfo> listed = options.files->list(folder / classes[label]);
    const size_t before = photos.size();
    for (const FileInfo& entry : listed)
      if (!entry.folder && detail::has_ending(entry.name, options.extensions))
        photos.push_back({static_cast<int64_t>(label), entry});
    if (photos.size() == before) fail_empty_class(folder, classes[label], listed, options);
  }
  return Dataset(std::make_shared<ImageFolderSource>(folder, options.files, std::move(classes),
                                                     std::move(photos)));
}

}  // namespace tutti::data
