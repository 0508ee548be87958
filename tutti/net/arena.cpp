#include "tutti/net/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// Locked bytes lie far beyond any memory, so that an index never meets data.
constexpr int64_t kLockBase = int64_t{1} << 60;

struct flock lock_request(int16_t kind, int64_t index) {
  struct flock request{};
  request.l_type = kind;
  request.l_whence = SEEK_SET;
  request.l_start = kLockBase + index;
  request.l_len = 1;
  return request;
}

}  // namespace

SharedFile SharedFile::create(std::string_view name) {
  const int descriptor = memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) throw Error(fmt::format("memfd_create: {}", errno_words(errno)));
  // Nobody can cut memory away under a mapping, which would be a SIGBUS.
  fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK);
  return SharedFile(descriptor);
}

SharedFile SharedFile::duplicate(int descriptor) {
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
  if (copy < 0)
    throw UsageError(
        fmt::format("descriptor {} of shared memory: {}", descriptor, errno_words(errno)));
  return SharedFile(copy);
}

SharedFile SharedFile::reopen() const {
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor_);
  const int again = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (again < 0)
    throw Error(fmt::format("shared memory, opening {} again: {}", path, errno_words(errno)));
  return SharedFile(again);
}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

int64_t SharedFile::size_bytes() const {
  struct stat facts{};
  if (fstat(descriptor_, &facts) != 0)
    throw Error(fmt::format("shared memory, reading its size: {}", errno_words(errno)));
  return facts.st_size;
}

bool SharedFile::reserve(int64_t offset, int64_t bytes) const {
  if (bytes == 0) return true;
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(descriptor_, offset, bytes);
  if (error == 0) return true;
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) return false;
  throw Error(fmt::format("shared memory, reserving {} bytes: {}", bytes, errno_words(error)));
}

void SharedFile::give_back(int64_t offset, int64_t bytes) const noexcept {
  if (bytes > 0) fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

void SharedFile::lock_byte(int64_t index) const {
  struct flock request = lock_request(F_WRLCK, index);
  if (fcntl(descriptor_, F_OFD_SETLK, &request) != 0)
    throw Error(fmt::format("shared memory, lock {}: {}", index, errno_words(errno)));
}

void SharedFile::unlock_byte(int64_t index) const noexcept {
  struct flock request = lock_request(F_UNLCK, index);
  fcntl(descriptor_, F_OFD_SETLK, &request);
}

bool SharedFile::byte_is_locked(int64_t index) const {
  struct flock request = lock_request(F_WRLCK, index);
  if (fcntl(descriptor_, F_OFD_GETLK, &request) != 0)
    throw Error(fmt::format("shared memory, looking at lock {}: {}", index, errno_words(errno)));
  return request.l_type != F_UNLCK;
}

Mapping::Mapping(const SharedFile& file, int64_t offset, int64_t bytes)
    : offset_(offset), bytes_(bytes) {
  if (bytes == 0) return;
  void* const address = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_POPULATE, file.descriptor(), offset);
  if (address == MAP_FAILED)
    throw Error(fmt::format("shared memory, mapping {} bytes: {}", bytes, errno_words(errno)));
  data_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(address),
                                     [bytes](std::byte* start) { munmap(start, bytes); });
}

bool Mapping::contains(const void* pointer, int64_t bytes) const noexcept {
  const auto start = reinterpret_cast<uintptr_t>(data());
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  return place >= start && bytes <= bytes_ &&
         place - start <= static_cast<uintptr_t>(bytes_ - bytes);
}

int64_t Mapping::offset_of(const void* pointer) const noexcept {
  return offset_ + (static_cast<const std::byte*>(pointer) - data());
}

}  // namespace tutti
