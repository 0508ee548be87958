#include "tutti/ps/wire/shared_heap.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "tutti/base/detail/check.h"
#include "tutti/base/host.h"

namespace tutti::ps {
namespace {

constexpr int64_t kLineBytes = 64;
// The file grows by an eighth of itself, so that a heap of any size is some tens of mappings; these
// bound what is taken and not used.
constexpr int64_t kLeastGrowthBytes = int64_t{1} << 20;
constexpr int64_t kMostGrowthBytes = int64_t{64} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 50;  // sums of two sizes stay far from an overflow

}  // namespace

// Invariant: every byte of a region is in exactly one living block or one free chunk, and two free
// chunks of a region never touch. Blocks do not cross regions: their addresses are not contiguous.
class SharedHeap::State {
 public:
  explicit State(int64_t limit) : limit_bytes(limit), file_(SharedFile::create("tutti ps")) {}

  /// A place with `bytes` (a multiple of kLineBytes) and its address.
  std::pair<int64_t, std::byte*> take(int64_t bytes) {
    std::lock_guard lock(mutex_);
    auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) {
      grow(bytes);
      best = by_size_.lower_bound({bytes, 0});
    }
    const auto [size, place] = *best;
    remove_free(place, size);
    if (size > bytes) add_free(place + bytes, size - bytes);
    used_bytes_ += bytes;
    return {place, region_at(place).at(place)};
  }

  void free(int64_t place, int64_t bytes) {
    std::lock_guard lock(mutex_);
    used_bytes_ -= bytes;
    const Mapping& region = region_at(place);
    const auto next = free_.lower_bound(place);
    int64_t begin = place, end = place + bytes;
    if (next != free_.end() && next->first == end && end < region.offset() + region.num_bytes()) {
      end += next->second;
    }
    if (next != free_.begin() && place > region.offset()) {
      const auto before = std::prev(next);
      if (before->first + before->second == place) begin = before->first;
    }
    if (end > place + bytes) remove_free(place + bytes, end - place - bytes);
    if (begin < place) remove_free(begin, place - begin);
    add_free(begin, end - begin);
  }

  void charge(int64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > 0) {
      if (bytes > room()) throw Error(words_of_limit("memory", bytes));
      check_memory_for(bytes, "what a parameter server holds");
    }
    charged_bytes_ += bytes;
  }

  std::optional<int64_t> place_of(const void* pointer) const {
    std::lock_guard lock(mutex_);
    const auto above = by_address_.upper_bound(static_cast<const std::byte*>(pointer));
    if (above == by_address_.begin()) return std::nullopt;
    const Mapping& region = region_at(std::prev(above)->second);
    if (!region.contains(pointer, 1)) return std::nullopt;
    return region.offset_of(pointer);
  }

  int64_t held_bytes() const {
    std::lock_guard lock(mutex_);
    return held_bytes_;
  }
  int64_t used_bytes() const {
    std::lock_guard lock(mutex_);
    return used_bytes_;
  }
  int descriptor() const noexcept { return file_.descriptor(); }

  const int64_t limit_bytes;

 private:
  void grow(int64_t bytes) {
    const int64_t needed = round_up(bytes, kPageBytes);
    if (needed > room()) throw Error(words_of_limit("a block", bytes));
    const int64_t spare =
        std::clamp(round_up(held_bytes_ / 8, kPageBytes), kLeastGrowthBytes, kMostGrowthBytes);
    int64_t more = std::min(std::max(needed, spare), room() & ~(kPageBytes - 1));
    const HostFacts facts = read_host_facts();
    if (more > facts.memory_left_bytes()) more = needed;
    check_memory_for(more, "a block of a parameter server's memory", facts);
    if (!file_.reserve(held_bytes_, more)) {
      throw Error(
          fmt::format("memory of a parameter server: the machine does not give {} more; {} are "
                      "held\n  use more servers or workers on other machines, or smaller tables",
                      size_words(more), size_words(held_bytes_)));
    }
    Mapping region(file_, held_bytes_, more);
    by_address_.emplace(region.data(), held_bytes_);
    regions_.emplace(held_bytes_, std::move(region));
    add_free(held_bytes_, more);
    held_bytes_ += more;
  }

  int64_t room() const {
    return limit_bytes == 0 ? kMostBytes : limit_bytes - held_bytes_ - charged_bytes_;
  }

  std::string words_of_limit(std::string_view what, int64_t bytes) const {
    return fmt::format(
        "memory of a parameter server: {} of {} is asked for; {} of at most {} are held, {} of "
        "them in blocks that live and {} in rows of embedding tables, and no free part is long "
        "enough\n  raise --memory-limit, or use more servers",
        what, size_words(bytes), size_words(held_bytes_ + charged_bytes_), size_words(limit_bytes),
        size_words(used_bytes_), size_words(charged_bytes_));
  }

  const Mapping& region_at(int64_t place) const {
    return std::prev(regions_.upper_bound(place))->second;
  }
  void add_free(int64_t place, int64_t bytes) {
    free_.emplace(place, bytes);
    by_size_.emplace(bytes, place);
  }
  void remove_free(int64_t place, int64_t bytes) {
    free_.erase(place);
    by_size_.erase({bytes, place});
  }

  mutable std::mutex mutex_;  // guards all below
  SharedFile file_;
  std::map<int64_t, Mapping> regions_;              // by place
  std::map<const std::byte*, int64_t> by_address_;  // places of regions
  std::map<int64_t, int64_t> free_;                 // place -> bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;   // (bytes, place) of the same chunks
  int64_t held_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t charged_bytes_ = 0;
};

SharedHeap::SharedHeap(int64_t limit_bytes) {
  if (limit_bytes < 0) {
    throw UsageError(
        fmt::format("memory limit of a parameter server: {} bytes; 0 means none", limit_bytes));
  }
  state_ = std::make_shared<State>(limit_bytes);
}

std::shared_ptr<std::byte> SharedHeap::allocate(int64_t bytes) {
  if (bytes < 0 || bytes > kMostBytes) {
    throw UsageError(fmt::format("memory of a parameter server: a block of {} bytes", bytes));
  }
  const int64_t taken = round_up(std::max<int64_t>(bytes, 1), kLineBytes);
  const auto [place, address] = state_->take(taken);
  return {address,
          [state = state_, place = place, taken](std::byte*) { state->free(place, taken); }};
}

void SharedHeap::charge(int64_t bytes) { state_->charge(bytes); }

std::optional<int64_t> SharedHeap::place_of(const void* pointer) const {
  return state_->place_of(pointer);
}

int64_t SharedHeap::held_bytes() const { return state_->held_bytes(); }
int64_t SharedHeap::used_bytes() const { return state_->used_bytes(); }
int SharedHeap::descriptor() const noexcept { return state_->descriptor(); }
int64_t SharedHeap::limit_bytes() const noexcept { return state_->limit_bytes; }

PeerHeap::PeerHeap(int descriptor, std::string who)
    : file_(SharedFile::duplicate(descriptor)), who_(std::move(who)) {
  const int seals = fcntl(file_.descriptor(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(
        fmt::format("what {} passed is no memory of a parameter server: it can be cut", who_));
  }
}

std::shared_ptr<const std::byte> PeerHeap::at(int64_t place, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const Mapping& mapping = mapping_with(place, bytes);
  return {mapping.owner(), mapping.at(place)};
}

const Mapping& PeerHeap::mapping_with(int64_t place, int64_t bytes) {
  if (place < 0 || bytes <= 0) {
    throw Error(fmt::format("{} names {} bytes at {} of its memory", who_, bytes, place));
  }
  for (const Mapping& mapping : mappings_) {
    const int64_t begin = place - mapping.offset();
    if (begin >= 0 && bytes <= mapping.num_bytes() - begin) return mapping;
  }
  struct stat facts{};
  if (fstat(file_.descriptor(), &facts) != 0) {
    throw Error(fmt::format("memory of {}: its size: {}", who_, errno_words(errno)));
  }
  const int64_t size = facts.st_size & ~(kPageBytes - 1);
  if (place > size || bytes > size - place) {
    throw Error(fmt::format("{} names {} bytes at {} of its memory, which has {}", who_, bytes,
                            place, size));
  }
  // A hole would be filled by mapping it, and with memory short that is a SIGBUS.
  if (facts.st_blocks * 512 < size) throw Error(fmt::format("the memory of {} has holes", who_));
  const int64_t end =
      mappings_.empty() ? 0 : mappings_.back().offset() + mappings_.back().num_bytes();
  // It grows by whole regions, so that only who lies names what crosses a former end.
  const int64_t begin = place >= end ? end : 0;
  return mappings_.emplace_back(file_, begin, size - begin);
}

int64_t PeerHeap::mapped_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const Mapping& mapping : mappings_) sum += mapping.num_bytes();
  return sum;
}

}  // namespace tutti::ps
