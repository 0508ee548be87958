// Kept samples in files: a folder of parts, each written by one process and read by all.
//
// A part is records one behind another: a head, then the sample as pack() has it. A process that
// dies in mid-record leaves a tail that is too short; the rest counts. A sample is held against its
// checksum when it is found, so that a large cache is opened by its heads alone.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/log.h"
#include "tutti/data/detail/cache.h"

namespace tutti::data::detail {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMagic = 0x31'61'74'61'64'74'74'75;  // and the version
constexpr const char* kEnding = ".samples";
// Other processes' records are looked for so often at most.
constexpr std::chrono::milliseconds kLook{200};

struct Head {
  uint64_t magic = kMagic;
  int64_t id = 0;
  int64_t bytes = 0;  // of the sample
  uint64_t checksum = 0;
};

uint64_t checksum_of(const Head& head, const std::byte* sample) {
  uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(&head.id), sizeof head.id);
  sum = crc32_z(sum, reinterpret_cast<const Bytef*>(&head.bytes), sizeof head.bytes);
  return crc32_z(sum, reinterpret_cast<const Bytef*>(sample), static_cast<size_t>(head.bytes));
}

bool read_all(int file, void* to, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(file, static_cast<char*>(to) + done,
                                static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += got;
  }
  return true;
}

// 0, or an errno. A record counts whole, or not at all.
int append_all(int file, std::span<const std::byte> record) {
  for (size_t done = 0; done < record.size();) {
    const ssize_t put = ::write(file, record.data() + done, record.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return errno;
    done += static_cast<size_t>(put);
  }
  return 0;
}

}  // namespace

struct FileCache::Part {
  std::string name;
  FileDescriptor file;
  int64_t known = 0;  // bytes, of records that count
};

FileCache::FileCache(fs::path folder, int64_t num_samples)
    : folder_(std::move(folder)), places_(static_cast<size_t>(num_samples)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw UsageError(
        fmt::format("cache folder {} cannot be made: {}", folder_.string(), error.message()));
  look();
}

FileCache::~FileCache() = default;

void FileCache::look() {
  looked_ = std::chrono::steady_clock::now();
  std::error_code error;
  auto entries = fs::directory_iterator(folder_, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.ends_with(kEnding)) continue;
    const bool is_known =
        std::ranges::any_of(parts_, [&](const auto& part) { return part->name == name; });
    if (is_known) continue;
    try {
      parts_.push_back(
          std::make_unique<Part>(Part{.name = name, .file = open_to_read(entries->path())}));
    } catch (const Error&) {
      continue;  // it went away, is no file, or belongs to somebody else
    }
  }
  for (size_t i = 0; i < parts_.size(); ++i)
    if (static_cast<int>(i) != own_) read_new(*parts_[i], static_cast<int>(i));
}

void FileCache::read_new(Part& part, int number) {
  struct stat facts{};
  if (::fstat(part.file.get(), &facts) != 0) return;
  while (part.known + static_cast<int64_t>(sizeof(Head)) <= facts.st_size) {
    Head head;
    if (!read_all(part.file.get(), &head, sizeof head, part.known)) return;
    const int64_t begin = part.known + static_cast<int64_t>(sizeof head);
    const bool sound = head.magic == kMagic && head.id >= 0 && head.id < std::ssize(places_) &&
                       head.bytes >= 0 && head.bytes <= facts.st_size - begin;
    if (!sound) return;  // cut off, or still being written
    const Place place{.file = number, .offset = begin, .bytes = head.bytes};
    Place& first = places_[static_cast<size_t>(head.id)];
    if (first.file < 0)
      first = place;
    else
      others_.emplace(head.id, place);
    part.known = begin + head.bytes;
  }
}

std::optional<Sample> FileCache::find(int64_t id, const std::vector<Column>& columns) {
  for (;;) {
    Place place;
    int file = -1;
    {
      const std::scoped_lock lock(mutex_);
      if (places_[static_cast<size_t>(id)].file < 0 &&
          std::chrono::steady_clock::now() - looked_ > kLook)
        look();
      place = places_[static_cast<size_t>(id)];
      if (place.file < 0) return std::nullopt;
      file = parts_[static_cast<size_t>(place.file)]->file.get();
    }
    const Array memory = make_array(DType::uint8, {place.bytes});
    auto* const bytes = static_cast<std::byte*>(memory.data());
    Head head;
    if (read_all(file, &head, sizeof head, place.offset - static_cast<int64_t>(sizeof head)) &&
        head.id == id && head.bytes == place.bytes &&
        read_all(file, bytes, place.bytes, place.offset) &&
        checksum_of(head, bytes) == head.checksum) {
      auto sample = unpacked(columns, {bytes, static_cast<size_t>(place.bytes)}, memory.owner());
      if (sample && packed_bytes(*sample) == place.bytes &&
          std::ranges::equal(sample->columns, columns, fits))
        return sample;
    }
    drop(id, place);
  }
}

// It is damaged, or no sample of this dataset: another process may have kept the same sample.
void FileCache::drop(int64_t id, const Place& damaged) {
  const std::scoped_lock lock(mutex_);
  Place& first = places_[static_cast<size_t>(id)];
  if (first.file != damaged.file || first.offset != damaged.offset) return;  // another thread did
  first = {};
  if (const auto other = others_.find(id); other != others_.end()) {
    first = other->second;
    others_.erase(other);
  }
}

void FileCache::keep(int64_t id, const Sample& sample) {
  const int64_t bytes = packed_bytes(sample);
  std::vector<std::byte> record(sizeof(Head) + static_cast<size_t>(bytes));
  pack(sample, record.data() + sizeof(Head));
  Head head{.id = id, .bytes = bytes};
  head.checksum = checksum_of(head, record.data() + sizeof head);
  std::memcpy(record.data(), &head, sizeof head);

  const std::scoped_lock lock(mutex_);
  if (own_ == -2) return;
  if (own_ >= 0 && owner_ != ::getpid()) own_ = -1;  // since a fork() it is the parent's
  const auto give_up = [&](int error) {
    log(LogLevel::warning,
        "cache folder {}: {}; nothing more is kept there, each sample is computed "
        "anew",
        folder_.string(), errno_words(error));
    own_ = -2;
  };
  if (own_ == -1) {
    std::random_device random;
    const std::string name = fmt::format("{:08x}{:08x}{}", random(), random(), kEnding);
    const std::string path = (folder_ / name).string();
    FileDescriptor file(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
    if (!file) return give_up(errno);
    own_ = static_cast<int>(parts_.size());
    owner_ = ::getpid();
    parts_.push_back(std::make_unique<Part>(Part{.name = name, .file = std::move(file)}));
  }
  Part& part = *parts_[static_cast<size_t>(own_)];
  if (const int error = append_all(part.file.get(), record)) {
    // Half a record would hide all that follows.
    if (::ftruncate(part.file.get(), part.known) != 0)
      log(LogLevel::warning, "{}: cannot be cut back", (folder_ / part.name).string());
    return give_up(error);
  }
  places_[static_cast<size_t>(id)] = {
      .file = own_, .offset = part.known + static_cast<int64_t>(sizeof head), .bytes = bytes};
  part.known += static_cast<int64_t>(record.size());
}

}  // namespace tutti::data::detail
