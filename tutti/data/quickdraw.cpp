#include "tutti/data/quickdraw.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/data/detail/doodles.h"
#include "tutti/data/detail/in_parallel.h"
#include "tutti/data/detail/source_in_memory.h"
#include "tutti/data/npy.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 28;
constexpr int64_t kPixels = kSide * kSide;

// x = ink * kScale: 255 becomes exactly 1.
constexpr float kScale = 1.0f / 255.0f;

// One multiplication an element and nothing else, so that the compiler makes vectors of it and
// every instruction set gives the same bits.
void scale_row(const uint8_t* __restrict ink, float* __restrict x) {
  for (int64_t i = 0; i < kPixels; ++i) x[i] = static_cast<float>(ink[i]) * kScale;
}

class QuickdrawSource final : public detail::SourceInMemory {
 public:
  // pixels[c] holds the rows of names[c], uint8 [rows, 784].
  QuickdrawSource(std::vector<std::string> names, std::vector<Array> pixels)
      : names_(std::move(names)), pixels_(std::move(pixels)) {
    for (const Array& rows : pixels_) ends_.push_back(num_rows() + rows.shape()[0]);
  }

  int64_t num_rows() const override { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<std::string>& classes() const override { return names_; }
  const std::vector<Column>& columns() const override {
    static const std::vector<Column> kColumns{
        {.name = "x", .dtype = DType::float32, .shape = {1, kSide, kSide}},
        {.name = "y", .dtype = DType::int64, .shape = {}}};
    return kColumns;
  }

  void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const override {
    auto* x = static_cast<float*>(places[0].data());
    auto* y = static_cast<int64_t*>(places[1].data());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i + kAhead < rows.size()) prefetch(find(rows[i + kAhead]).ink);
      const Doodle doodle = find(rows[i]);
      scale_row(doodle.ink, x);
      x += kPixels;
      *y++ = doodle.label;
    }
  }

 private:
  // Shuffled rows are never in cache: asked for this many doodles early, they arrive in time.
  static constexpr size_t kAhead = 4;

  struct Doodle {
    const uint8_t* ink = nullptr;
    int64_t label = 0;
  };

  Doodle find(int64_t row) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), row);
    const int64_t label = end - ends_.begin();
    const Array& pixels = pixels_[static_cast<size_t>(label)];
    const int64_t first = *end - pixels.shape()[0];
    return {static_cast<const uint8_t*>(pixels.data()) + (row - first) * kPixels, label};
  }

  static void prefetch(const uint8_t* ink) {
    for (int64_t i = 0; i < kPixels; i += 64) __builtin_prefetch(ink + i);
  }

  std::vector<std::string> names_;
  std::vector<Array> pixels_;
  std::vector<int64_t> ends_;  // ends_[c]: rows of the classes 0 to c together
};

void require_options(const QuickdrawOptions& options) {
  const std::vector<std::string> splits{"train", "test", "all"};
  if (std::find(splits.begin(), splits.end(), options.split) == splits.end())
    throw UsageError(unknown_message("split", options.split, splits));
  if (!(options.test_fraction >= 0 && options.test_fraction < 1))
    throw UsageError(
        fmt::format("test fraction {}: expected 0 <= fraction < 1", options.test_fraction));
  if (options.limit_per_class < 0)
    throw UsageError(fmt::format("limit of {} doodles a class: expected 0 (all) or more",
                                 options.limit_per_class));
}

// The class a file name stands for; empty when it is none of ours.
std::string class_of(const std::string& name) {
  for (const std::string_view ending : {".npy", ".npy.gz"})
    if (name.size() > ending.size() && name.ends_with(ending) && name[0] != '.')
      return name.substr(0, name.size() - ending.size());
  return {};
}

// Files by class, sorted by bytes: the same labels under every locale.
std::map<std::string, fs::path> find_classes(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw DataError(fmt::format(
        "data folder {}: {}, expected a folder of <class>.npy or "
        "<class>.npy.gz files\n  check the path",
        folder.string(), fs::exists(folder, error) ? "is no folder" : "does not exist"));
  std::map<std::string, fs::path> files;
  auto entries = fs::directory_iterator(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = class_of(entries->path().filename().string());
    if (name.empty()) continue;
    const auto [known, is_new] = files.emplace(name, entries->path());
    if (!is_new)
      throw DataError(
          fmt::format("data folder {}: class \"{}\" is there twice, as {} and {}\n"
                      "  remove one",
                      folder.string(), name, known->second.filename().string(),
                      entries->path().filename().string()));
  }
  if (error)
    throw DataError(
        fmt::format("data folder {} cannot be read: {}", folder.string(), error.message()));
  if (files.empty())
    throw DataError(
        fmt::format("data folder {}: got no class, expected <class>.npy or "
                    "<class>.npy.gz files of uint8 [rows, {}]",
                    folder.string(), kPixels));
  return files;
}

std::vector<std::string> classes_by_label(const fs::path& folder,
                                          const std::map<std::string, fs::path>& files,
                                          const QuickdrawOptions& options) {
  std::vector<std::string> there;
  for (const auto& [name, path] : files) there.push_back(name);
  if (options.classes.empty()) return there;
  for (const std::string& name : there)
    if (std::ranges::find(options.classes, name) == options.classes.end())
      throw DataError(fmt::format("data folder {}: {}", folder.string(),
                                  unknown_message("class", name, options.classes)));
  if (there.size() < options.classes.size())
    log(LogLevel::warning, "data folder {}: there are doodles of {} of {} classes: {}",
        folder.string(), there.size(), options.classes.size(), fmt::join(there, ", "));
  return options.classes;
}

/// Doodles of files that somebody has in memory: whoever takes one split of a folder, and then the
/// other, reads it once. Thread rule: any threads.
class InMemory {
 public:
  static InMemory& of_this_process() {
    static InMemory all;
    return all;
  }

  Array read(const fs::path& path) {
    const std::optional<Key> key = key_of(path);
    if (!key) return detail::read_doodles(path);  // which says why, or has come just now
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = known_.find(*key); found != known_.end())
        if (auto owner = found->second.owner.lock())
          return Array::view(found->second.data, DType::uint8, {found->second.rows, kPixels},
                             std::move(owner));
    }
    const Array pixels = detail::read_doodles(path);
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& file) { return file.second.owner.expired(); });
    known_.insert_or_assign(*key, Doodles{pixels.owner(), pixels.data(), pixels.shape()[0]});
    return pixels;
  }

 private:
  // A file that was changed, or another in its place, is another. One that is written twice within
  // a tick of the file system's clock, with as many bytes, is not: a few milliseconds.
  using Key = std::tuple<dev_t, ino_t, off_t, time_t, long, time_t, long>;
  static std::optional<Key> key_of(const fs::path& path) {
    struct stat facts{};
    if (::stat(path.c_str(), &facts) != 0) return std::nullopt;
    return Key{facts.st_dev,         facts.st_ino,          facts.st_size,
               facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec, facts.st_ctim.tv_sec,
               facts.st_ctim.tv_nsec};
  }

  struct Doodles {
    std::weak_ptr<const void> owner;
    void* data;
    int64_t rows;
  };
  std::mutex mutex_;
  std::map<Key, Doodles> known_;  // guarded by mutex_
};

Array read_class(const fs::path& path) {
  Array pixels = InMemory::of_this_process().read(path);
  if (pixels.shape()[0] == 0)
    throw DataError(
        fmt::format("{}: got {}, expected one row or more", path.string(), pixels.to_string()));
  return pixels;
}

Array rows_of_split(const Array& pixels, const QuickdrawOptions& options) {
  const int64_t rows = pixels.shape()[0];
  // A sixth has no exact double: without the nudge 1/6 of 3,000 may round down to 499.
  const auto test = static_cast<int64_t>(static_cast<double>(rows) * options.test_fraction + 1e-6);
  int64_t begin = options.split == "test" ? rows - test : 0;
  int64_t end = options.split == "train" ? rows - test : rows;
  if (options.limit_per_class > 0) end = std::min(end, begin + options.limit_per_class);
  return pixels.rows(begin, end);
}

}  // namespace

Array detail::read_doodles(const fs::path& path) {
  static const std::vector<int64_t> kShapes[] = {
      {kPixels}, {1, kPixels}, {kSide, kSide}, {kSide, kSide, 1}, {1, kSide, kSide}};
  const Array file = read_npy(path);
  const auto has_shape = [&](const std::vector<int64_t>& shape) {
    const std::span<const int64_t> sizes = file.shape();
    return !sizes.empty() && std::ranges::equal(sizes.subspan(1), shape);
  };
  if (file.dtype() != DType::uint8 || std::ranges::none_of(kShapes, has_shape))
    throw DataError(fmt::format("{}: got {}, expected uint8 [rows, {}] or [rows, {}, {}] (doodles)",
                                path.string(), file.to_string(), kPixels, kSide, kSide));
  return Array::view(file.data(), file.dtype(), {file.shape()[0], kPixels}, file.owner());
}

Dataset quickdraw(const fs::path& folder, QuickdrawOptions options) {
  require_options(options);
  const auto files = find_classes(folder);
  std::vector<std::string> names = classes_by_label(folder, files, options);
  std::vector<Array> pixels(names.size(), make_array(DType::uint8, {0, kPixels}));
  detail::in_parallel(std::ssize(names), [&](int64_t label) {
    const auto at = static_cast<size_t>(label);
    if (const auto file = files.find(names[at]); file != files.end())
      pixels[at] = rows_of_split(read_class(file->second), options);
  });
  auto source = std::make_shared<QuickdrawSource>(std::move(names), std::move(pixels));
  if (source->num_rows() == 0)
    throw UsageError(
        fmt::format("data folder {}: the split \"{}\" is empty with a test fraction of {:.3g}",
                    folder.string(), options.split, options.test_fraction));
  return Dataset(std::move(source));
}

}  // namespace tutti::data
