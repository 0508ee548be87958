#include "tutti/data/sources/image_folder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/data/sources/detail/photo_columns.h"
#include "tutti/data/sources/detail/photo_files.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

struct Photo {
  int64_t label = 0;
  FileInfo file;  // its name: the path within the class
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
  std::vector<std::string> there = names_of_folders(listed);
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

// What is in the folders of classes, and in those within them.
struct Found {
  std::vector<Photo> photos;
  detail::LeftOut left_out;
  bool in_a_class_itself = false;  // one of the photos at least, and not in a folder within
};

class Search {
 public:
  Search(const fs::path& folder, const ImageFolderOptions& options)
      : folder_(folder), options_(options) {}

  // The photos of a class, sorted by the bytes of their paths in it. Whether there is one.
  bool add_class(const std::string& name, int64_t label) {
    const size_t before = found_.photos.size();
    add_folder(name, "", label, 0);
    const auto own = found_.photos.begin() + static_cast<std::ptrdiff_t>(before);
    std::ranges::sort(own, found_.photos.end(), {},
                      [](const Photo& photo) -> const std::string& { return photo.file.name; });
    return own != found_.photos.end();
  }

  // Of the files beside the classes: photos, which belong to none.
  void add_beside(const std::vector<FileInfo>& listed) {
    for (const FileInfo& file : listed)
      if (detail::is_photo_file(*options_.files, folder_, file, options_.extensions))
        found_.left_out.add(file.name);
  }

  Found& found() noexcept { return found_; }

 private:
  static constexpr int kMostDepth = 32;

  void require_no_loop(const fs::path& folder, int depth) const {
    if (depth > kMostDepth)
      throw DataError(fmt::format("photos in {}: folders are {} deep, expected up to {}",
                                  folder.string(), depth, kMostDepth));
    std::error_code elsewhere;  // not on a disk of this machine
    const fs::path real = fs::canonical(folder, elsewhere);
    for (fs::path above = folder; !elsewhere && above != folder_ && above.has_relative_path();) {
      above = above.parent_path();
      if (fs::canonical(above, elsewhere) == real && !elsewhere)
        throw DataError(
            fmt::format("photos in {}: a link leads back to {}", folder.string(), above.string()));
    }
  }

  void add_folder(const std::string& name, const std::string& within, int64_t label, int depth) {
    const fs::path folder = within.empty() ? folder_ / name : folder_ / name / within;
    require_no_loop(folder, depth);
    for (FileInfo& entry : options_.files->list(folder)) {
      const std::string path =
          within.empty() ? entry.name : fmt::format("{}/{}", within, entry.name);
      if (entry.folder) {
        add_folder(name, path, label, depth + 1);
      } else if (detail::is_photo_file(*options_.files, folder, entry, options_.extensions)) {
        entry.name = path;
        found_.photos.push_back({label, std::move(entry)});
        found_.in_a_class_itself = found_.in_a_class_itself || depth == 0;
      } else {
        found_.left_out.add(fmt::format("{}/{}", name, path));
      }
    }
  }

  const fs::path& folder_;
  const ImageFolderOptions& options_;
  Found found_;
};

std::string words_for_photos(const ImageFolderOptions& options) {
  return options.extensions.empty() ? detail::usual_photo_endings()
                                    : fmt::format("{}", fmt::join(options.extensions, ", "));
}

[[noreturn]] void fail_empty_class(const fs::path& folder, const std::string& name,
                                   const ImageFolderOptions& options) {
  const std::vector<FileInfo> listed = options.files->list(folder / name);
  const std::vector<std::string> within = names_of_folders(listed);
  throw DataError(fmt::format(
      "photos in {}: class \"{}\" is empty: got {} other files, {} folders, expected photos ({})\n"
      "  remove the folder or add photos",
      folder.string(), name, listed.size() - within.size(), within.size(),
      words_for_photos(options)));
}

// Folders of folders of photos: more likely train/ and val/ than two classes.
[[noreturn]] void fail_level_below(const fs::path& folder,
                                   const std::vector<std::string>& classes) {
  throw DataError(
      fmt::format("photos in {}: no photo lies in {} itself, but in folders within\n  give {} if "
                  "they are the classes; else move a photo of one class at least into its folder",
                  folder.string(), fmt::join(classes, ", "), (folder / classes[0]).string()));
}

// Of classes that are given, as those of validation and test are, some may have no photo.
void report_lacking(const fs::path& folder, const std::vector<std::string>& lacking,
                    const ImageFolderOptions& options) {
  if (lacking.empty()) return;
  if (lacking.size() == options.classes.size())
    throw DataError(fmt::format("photos in {}: got no photo of {}, expected photos ({})",
                                folder.string(), fmt::join(lacking, ", "),
                                words_for_photos(options)));
  log(LogLevel::warning, "photos in {}: of {} of {} classes there is none: {}", folder.string(),
      lacking.size(), options.classes.size(), fmt::join(lacking, ", "));
}

}  // namespace

Dataset image_folder(const fs::path& folder, const ImageFolderOptions& options) {
  const std::vector<FileInfo> listed = options.files->list(folder);
  std::vector<std::string> classes = classes_in(folder, listed, options);
  const std::vector<std::string> there = names_of_folders(listed);
  Search search(folder, options);
  std::vector<std::string> lacking;
  for (size_t label = 0; label < classes.size(); ++label) {
    const std::string& name = classes[label];
    const bool is_there = std::ranges::find(there, name) != there.end();
    if (is_there && search.add_class(name, static_cast<int64_t>(label))) continue;
    if (options.classes.empty()) fail_empty_class(folder, name, options);
    lacking.push_back(name);
  }
  report_lacking(folder, lacking, options);
  search.add_beside(listed);
  Found& found = search.found();
  if (!found.in_a_class_itself) fail_level_below(folder, there);
  if (!found.left_out.empty() && options.extensions.empty()) {
    const std::string words =
        fmt::format("photos in {}: {}", folder.string(), found.left_out.to_string());
    options.on_left_out ? options.on_left_out(words) : log(LogLevel::warning, "{}", words);
  }
  return Dataset(std::make_shared<ImageFolderSource>(folder, options.files, std::move(classes),
                                                     std::move(found.photos)));
}

}  // namespace tutti::data
