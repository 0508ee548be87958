/// SharedFile and Mapping: memory without a name that several processes can map.
///
/// A SharedFile is a memfd: it lives as long as a process holds its descriptor or a mapping of it,
/// and nothing of it stays after any kind of death. It is limited by memory and cgroup, not by the
/// size of /dev/shm.
/// Thread rule: const functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace tutti {

/// Owns one descriptor of a memfd, close-on-exec. Moves, does not copy.
class SharedFile {
 public:
  SharedFile() = default;
  /// Makes an empty one; `name` shows in /proc/PID/maps only.
  static SharedFile create(std::string_view name);
  /// Takes a duplicate of `descriptor`; the caller keeps its own. UsageError when it is not open.
  static SharedFile duplicate(int descriptor);
  /// A second open file description of the same memory: locks taken through it are its own.
  SharedFile reopen() const;

  SharedFile(SharedFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  SharedFile& operator=(SharedFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~SharedFile();

  int descriptor() const noexcept { return descriptor_; }
  int64_t size_bytes() const;

  /// Makes [offset, offset + bytes) resident and zero, growing the file; false when memory is
  /// short. Without it the first touch of a page that cannot be had would be a SIGBUS.
  [[nodiscard]] bool reserve(int64_t offset, int64_t bytes) const;
  /// Gives the memory of [offset, offset + bytes) back; it reads as zero afterwards.
  void give_back(int64_t offset, int64_t bytes) const noexcept;

  /// Holds byte `index` of an advisory lock until unlocked, or until this process is dead: the
  /// kernel releases it then, whatever the kind of death. Locks belong to this object's own
  /// description, so make it with reopen().
  void lock_byte(int64_t index) const;
  void unlock_byte(int64_t index) const noexcept;
  /// Whether another description holds byte `index`. Works across pid namespaces.
  bool byte_is_locked(int64_t index) const;

 private:
  explicit SharedFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

/// Part of a SharedFile at addresses of this process. The last copy unmaps it.
class Mapping {
 public:
  Mapping() = default;
  /// Maps [offset, offset + bytes); offset is a multiple of kPageBytes. Pages are faulted in.
  Mapping(const SharedFile& file, int64_t offset, int64_t bytes);

  std::byte* data() const noexcept { return data_.get(); }
  int64_t offset() const noexcept { return offset_; }
  int64_t num_bytes() const noexcept { return bytes_; }

  /// True when [pointer, pointer + bytes) lies inside.
  bool contains(const void* pointer, int64_t bytes) const noexcept;
  /// The place in the file of a pointer inside, and back.
  int64_t offset_of(const void* pointer) const noexcept;
  std::byte* at(int64_t file_offset) const noexcept { return data() + (file_offset - offset_); }

  const std::shared_ptr<std::byte>& owner() const noexcept { return data_; }

 private:
  std::shared_ptr<std::byte> data_;
  int64_t offset_ = 0;
  int64_t bytes_ = 0;
};

constexpr int64_t kPageBytes = 4096;

/// `bytes` rounded up to a multiple of `unit` (a power of two).
constexpr int64_t round_up(int64_t bytes, int64_t unit) noexcept {
  return (bytes + unit - 1) & ~(unit - 1);
}

}  // namespace tutti
