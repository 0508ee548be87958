#include "tutti/data/sources/idx.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/data/detail/gzip.h"
#include "tutti/data/detail/source_in_memory.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

// The third byte of a file.
constexpr std::pair<uint8_t, DType> kIdxTypes[] = {
    {0x08, DType::uint8}, {0x09, DType::int8},    {0x0B, DType::int16},
    {0x0C, DType::int32}, {0x0D, DType::float32}, {0x0E, DType::float64},
};
// Labels number the outputs of a network: more are no classes.
constexpr int64_t kMostIdxClasses = 1 << 20;
constexpr float kIdxScale = 1.0f / 255.0f;  // 255 becomes exactly 1

// The bytes of a file from its begin on, unpacked where they are packed.
class IdxBytes {
 public:
  IdxBytes(Array file, const std::string& where)
      : file_(std::move(file)), rest_(std::as_bytes(file_.as<uint8_t>())) {
    if (rest_.size() > 1 && rest_[0] == std::byte{0x1f} && rest_[1] == std::byte{0x8b})
      gzip_ = std::make_unique<detail::GzipReader>(rest_, where);
  }

  size_t read(std::span<std::byte> out) {
    if (gzip_) return gzip_->read(out);
    const size_t count = std::min(out.size(), rest_.size());
    std::copy_n(rest_.begin(), count, out.begin());
    rest_ = rest_.subspan(count);
    return count;
  }

  /// More than this cannot come: deflate shrinks by 1032:1 at most.
  int64_t most_bytes() const { return packed_bytes() * (gzip_ ? 1032 : 1); }
  bool packed() const { return gzip_ != nullptr; }
  int64_t packed_bytes() const { return file_.num_bytes(); }

 private:
  Array file_;
  std::span<const std::byte> rest_;
  std::unique_ptr<detail::GzipReader> gzip_;
};

uint32_t big_endian(std::span<const std::byte, 4> bytes) {
  uint32_t value = 0;
  for (std::byte byte : bytes) value = value << 8 | std::to_integer<uint32_t>(byte);
  return value;
}

[[noreturn]] void fail_idx_size(const std::string& where, int64_t got, int64_t header,
                                const std::vector<int64_t>& shape, DType dtype, int64_t data) {
  throw DataError(fmt::format(
      "{}: {}: got {} bytes, expected {} ({} of header, {} for {} {})\n  fetch the file again",
      where, got < header + data ? "truncated" : "bytes left over", got, header + data, header,
      data, name_of(dtype), shape_words(shape)));
}

// The dtype, and how many sizes follow.
std::pair<DType, size_t> read_magic(IdxBytes& bytes, const std::string& where) {
  std::byte magic[4] = {};
  const size_t got = bytes.read(magic);
  const auto octet = [&](size_t i) { return std::to_integer<uint8_t>(magic[i]); };
  const auto* type = std::ranges::find(kIdxTypes, octet(2), &std::pair<uint8_t, DType>::first);
  if (got < 4 || octet(0) != 0 || octet(1) != 0 || type == std::end(kIdxTypes) || octet(3) == 0)
    throw DataError(
        fmt::format("{}: wrong magic: got {:02x} {:02x} {:02x} {:02x} ({} bytes), expected 00 00, "
                    "a type (08, 09, 0b, 0c, 0d, 0e) and the number of dimensions; this is no IDX "
                    "file",
                    where, octet(0), octet(1), octet(2), octet(3), got));
  return {type->second, octet(3)};
}

void swap_idx_elements(Array& array) {
  const auto bytes = static_cast<std::ptrdiff_t>(size_of(array.dtype()));
  auto* at = static_cast<char*>(array.data());
  if (bytes > 1)
    for (int64_t i = 0; i < array.num_elements(); ++i, at += bytes) std::reverse(at, at + bytes);
}

class IdxSource final : public detail::SourceInMemory {
 public:
  IdxSource(Array images, std::vector<int64_t> labels, std::vector<std::string> classes,
            const IdxOptions& options, std::string where, std::string fingerprint)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        classes_(std::move(classes)),
        where_(std::move(where)),
        fingerprint_(std::move(fingerprint)),
        scale_(options.scale && images_.dtype() == DType::uint8 && images_.shape().size() == 3) {
    std::vector<int64_t> shape(images_.shape().begin() + 1, images_.shape().end());
    if (scale_) shape.insert(shape.begin(), 1);
    columns_.push_back(
        {.name = "x", .dtype = scale_ ? DType::float32 : images_.dtype(), .shape = shape});
    if (options.labelled) columns_.push_back({.name = "y", .dtype = DType::int64, .shape = {}});
  }

  int64_t num_rows() const override { return images_.shape()[0]; }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::string where(int64_t row) const override { return fmt::format("{}, row {}", where_, row); }
  std::string fingerprint() const override { return fingerprint_; }
  std::vector<int64_t> first_rows_of_files() const override { return {0}; }

  void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const override {
    if (rows.empty() || num_rows() == 0) return;
    const int64_t row_bytes = images_.num_bytes() / num_rows();
    const auto* images = static_cast<const uint8_t*>(images_.data());
    const int64_t place_bytes = places[0].num_bytes() / std::ssize(rows);
    auto* x = static_cast<char*>(places[0].data());
    for (int64_t row : rows) {
      const uint8_t* image = images + row * row_bytes;
      if (scale_)
        scale(image, row_bytes, reinterpret_cast<float*>(x));
      else if (row_bytes > 0)
        std::memcpy(x, image, static_cast<size_t>(row_bytes));
      x += place_bytes;
    }
    if (columns_.size() < 2) return;
    auto* y = static_cast<int64_t*>(places[1].data());
    for (int64_t row : rows) *y++ = labels_[static_cast<size_t>(row)];
  }

 private:
  // One multiplication an element: the same bits from every instruction set.
  static void scale(const uint8_t* __restrict image, int64_t pixels, float* __restrict x) {
    for (int64_t i = 0; i < pixels; ++i) x[i] = static_cast<float>(image[i]) * kIdxScale;
  }

  Array images_;
  std::vector<int64_t> labels_;
  std::vector<std::string> classes_;
  std::string where_;
  std::string fingerprint_;
  bool scale_;
  std::vector<Column> columns_;
};

fs::path find_labels(const fs::path& images, const Files& files) {
  std::string name = images.filename().string();
  const auto replace = [&name](std::string_view from, std::string_view to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
    return at != std::string::npos;
  };
  const bool usual = replace("images", "labels") && (replace("idx3", "idx1") || true);
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  if (usual) {
    const std::vector<FileInfo> beside =
        files.list(images.has_parent_path() ? images.parent_path() : ".");
    for (const std::string& wanted : {name + ".gz", name})
      if (std::ranges::find(beside, wanted, &FileInfo::name) != beside.end())
        return images.parent_path() / wanted;
  }
  throw DataError(fmt::format(
      "{}: the labels are missing: {}\n  name them by `labels`, or set labelled = false",
      images.string(),
      usual ? fmt::format("got neither {0} nor {0}.gz beside it", name)
            : "the name has no \"images\", so that of the labels cannot be told from it"));
}

template <class T>
std::vector<int64_t> widened(const Array& array) {
  const auto elements = array.as<T>();
  return {elements.begin(), elements.end()};
}

std::vector<int64_t> read_labels(const fs::path& path, int64_t images, const IdxOptions& options) {
  const Array array = read_idx(path, options.files);
  if (array.shape().size() != 1 || is_floating(array.dtype()))
    throw DataError(fmt::format("{}: got {}, expected labels: whole numbers of one dimension",
                                path.string(), array.to_string()));
  if (array.shape()[0] != images)
    throw DataError(
        fmt::format("{}: got {} labels, expected {}: one an image\n"
                    "  do both files belong to the same data?",
                    path.string(), array.shape()[0], images));
  std::vector<int64_t> labels = array.dtype() == DType::uint8   ? widened<uint8_t>(array)
                                : array.dtype() == DType::int8  ? widened<int8_t>(array)
                                : array.dtype() == DType::int16 ? widened<int16_t>(array)
                                                                : widened<int32_t>(array);
  const int64_t end = options.classes.empty() ? kMostIdxClasses : std::ssize(options.classes);
  for (size_t row = 0; row < labels.size(); ++row)
    if (labels[row] < 0 || labels[row] >= end)
      throw DataError(fmt::format("{}: row {}: got label {}, expected 0 to {}", path.string(), row,
                                  labels[row], end - 1));
  return labels;
}

}  // namespace

Array read_idx(const fs::path& path, const FilesHandle& files) {
  const std::string where = path.string();
  IdxBytes bytes(files->read(path), where);
  const auto [dtype, dimensions] = read_magic(bytes, where);
  std::vector<std::byte> sizes(4 * dimensions);
  const size_t got_sizes = bytes.read(sizes);
  if (got_sizes < sizes.size())
    throw DataError(fmt::format("{}: truncated: got {} bytes, expected {} or more of header", where,
                                4 + got_sizes, 4 + sizes.size()));
  std::vector<int64_t> shape;
  for (size_t i = 0; i < dimensions; ++i)
    shape.push_back(big_endian(std::span(sizes).subspan(4 * i).first<4>()));
  const auto data_bytes = bytes_of_shape(dtype, shape);
  if (!data_bytes || *data_bytes > bytes.most_bytes())
    throw DataError(fmt::format("{}: truncated or damaged: got {} bytes at most, expected {} {}",
                                where, bytes.most_bytes(), name_of(dtype), shape_words(shape)));
  if (bytes.packed()) detail::require_unpackable(*data_bytes, bytes.packed_bytes(), where);
  Array array = make_array(dtype, shape);
  const auto wanted = static_cast<size_t>(*data_bytes);
  const size_t got = bytes.read({static_cast<std::byte*>(array.data()), wanted});
  std::byte one_more{};
  const size_t beyond = got == wanted ? bytes.read({&one_more, 1}) : 0;
  const auto header = static_cast<int64_t>(4 + sizes.size());
  if (got + beyond != wanted)  // of more it is known that there is one byte at least
    fail_idx_size(where, header + static_cast<int64_t>(got + beyond), header, shape, dtype,
                  *data_bytes);
  swap_idx_elements(array);
  return array;
}

Dataset idx(const fs::path& images, IdxOptions options) {
  Array array = read_idx(images, options.files);
  // Nothing in the file bounds how many there are.
  if (array.num_elements() == 0 && array.shape()[0] > 0)
    throw DataError(fmt::format("{}: damaged: got {} samples without a value, {}", images.string(),
                                array.shape()[0], array.to_string()));
  std::vector<FileInfo> files{options.files->info(images)};
  std::vector<int64_t> labels;
  std::vector<std::string> classes;
  if (options.labelled) {
    if (options.labels.empty()) options.labels = find_labels(images, *options.files);
    labels = read_labels(options.labels, array.shape()[0], options);
    files.push_back(options.files->info(options.labels));
    const int64_t numbers = labels.empty() ? 0 : std::ranges::max(labels) + 1;
    classes = options.classes.empty() ? detail::numbered_classes(numbers) : options.classes;
  }
  const std::string words = fmt::format("idx scale {} {}", options.scale, fingerprint_of(files));
  return Dataset(std::make_shared<IdxSource>(std::move(array), std::move(labels),
                                             std::move(classes), options,
                                             images.filename().string(), sha256_hex(words)));
}

}  // namespace tutti::data
