// Kept samples: as bytes, and in memory that processes share.

#include "tutti/data/detail/cache.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data::detail {
namespace {

constexpr int64_t kLineBytes = 64;
// Reserved and mapped at once; a sample lies within one.
constexpr int64_t kChunkBytes = int64_t{32} << 20;

// Places: 0 nobody has it; a multiple of 64 where it is; else a claim, or that there is no room.
constexpr uint64_t kNoRoom = 2;
constexpr uint64_t claim_of(pid_t process) { return static_cast<uint64_t>(process) << 2 | 1; }
constexpr bool is_claim(uint64_t place) { return (place & 3) == 1; }
constexpr bool is_final(uint64_t place) { return place != 0 && place % kLineBytes == 0; }

int64_t sizes_bytes(const std::vector<int64_t>& shape) {
  return round_up(std::ssize(shape) * int64_t{sizeof(int64_t)}, kLineBytes);
}

}  // namespace

int64_t packed_bytes(const Sample& sample) {
  int64_t bytes = 0;
  for (const Array& value : sample.columns)
    bytes += sizes_bytes(value.shape()) + round_up(value.num_bytes(), kLineBytes);
  return bytes;
}

void pack(const Sample& sample, std::byte* to) {
  for (const Array& value : sample.columns) {
    if (!value.shape().empty())
      std::memcpy(to, value.shape().data(), value.shape().size() * sizeof(int64_t));
    to += sizes_bytes(value.shape());
    const auto bytes = static_cast<size_t>(value.num_bytes());
    if (bytes != 0) std::memcpy(to, value.data(), bytes);
    to += round_up(value.num_bytes(), kLineBytes);
  }
}

std::optional<Sample> unpacked(const std::vector<Column>& columns, std::span<std::byte> from,
                               const std::shared_ptr<const void>& owner) {
  const auto take = [&from](int64_t bytes) {
    std::byte* const begin = from.data();
    from = from.subspan(static_cast<size_t>(bytes));
    return begin;
  };
  Sample sample;
  for (const Column& column : columns) {
    std::vector<int64_t> shape(column.shape.size());
    if (std::ssize(from) < sizes_bytes(shape)) return std::nullopt;
    const std::byte* const sizes = take(sizes_bytes(shape));
    if (!shape.empty()) std::memcpy(shape.data(), sizes, shape.size() * sizeof(int64_t));
    const auto bytes = bytes_of_shape(column.dtype, shape);
    if (!bytes || *bytes > std::ssize(from) || round_up(*bytes, kLineBytes) > std::ssize(from))
      return std::nullopt;
    std::byte* const elements = take(round_up(*bytes, kLineBytes));
    sample.columns.push_back(Array::view(elements, column.dtype, std::move(shape), owner));
  }
  return sample;
}

struct SharedCache::Header {
  uint64_t used;      // bytes, this and the table included
  uint64_t computed;  // samples
};

SharedCache::SharedCache(int64_t num_samples, int64_t most_bytes)
    : num_samples_(num_samples),
      first_(round_up(table_bytes(), kChunkBytes)),
      most_bytes_(std::min(most_bytes, int64_t{1} << 62)) {
  if (most_bytes < 1)
    throw UsageError(fmt::format("cache({}): expected 1 byte or more", most_bytes));
  lead(SharedFile::create("tutti cache"));
  shared_ = false;
}

void SharedCache::lead(SharedFile file) {
  if (!file.reserve(0, table_bytes()))
    throw Error(fmt::format("cache: no memory for a table of {} samples", num_samples_));
  follow(std::move(file));
  header().used = static_cast<uint64_t>(first_);
}

void SharedCache::follow(SharedFile file) {
  file_ = std::move(file);
  shared_ = true;
  begin();
}

void SharedCache::begin() {
  const std::scoped_lock lock(mutex_);
  chunks_.clear();
  table_ = Mapping(file_, 0, table_bytes());
}

int64_t SharedCache::table_bytes() const {
  return kLineBytes + num_samples_ * int64_t{sizeof(uint64_t)};
}

SharedCache::Header& SharedCache::header() const {
  return *reinterpret_cast<Header*>(table_.data());
}

uint64_t& SharedCache::place(int64_t id) const {
  return reinterpret_cast<uint64_t*>(table_.data() + kLineBytes)[id];
}

int64_t SharedCache::bytes() const {
  return static_cast<int64_t>(std::atomic_ref(header().used).load()) - first_;
}

int64_t SharedCache::computed() const {
  return static_cast<int64_t>(std::atomic_ref(header().computed).load());
}

Mapping SharedCache::chunk_at(uint64_t offset) {
  if (offset >= static_cast<uint64_t>(first_ + most_bytes_)) return {};
  const auto number = static_cast<size_t>(offset / kChunkBytes);
  const std::scoped_lock lock(mutex_);
  if (chunks_.size() <= number) chunks_.resize(number + 1);
  Mapping& chunk = chunks_[number];
  const auto begin = static_cast<int64_t>(number) * kChunkBytes;
  if (chunk.data() == nullptr) {
    // Before it is touched, by whoever comes first: a page that cannot be had would be a SIGBUS.
    const int64_t bytes = std::min(kChunkBytes, first_ + most_bytes_ - begin);
    if (!file_.reserve(begin, bytes)) return {};
    chunk = Mapping(file_, begin, bytes);
  }
  return chunk;
}

// 0: no room.
uint64_t SharedCache::keep(const Sample& sample) {
  const auto bytes = static_cast<uint64_t>(packed_bytes(sample));
  if (bytes > kChunkBytes || bytes == 0) return 0;
  std::atomic_ref used(header().used);
  uint64_t begin = 0;
  uint64_t before = used.load();
  do {
    begin = before;
    if (begin / kChunkBytes != (begin + bytes - 1) / kChunkBytes)
      begin = (begin / kChunkBytes + 1) * kChunkBytes;
    if (begin + bytes > static_cast<uint64_t>(first_ + most_bytes_)) return 0;
  } while (!used.compare_exchange_weak(before, begin + bytes));
  const Mapping chunk = chunk_at(begin);
  if (chunk.data() == nullptr) return 0;
  pack(sample, chunk.at(static_cast<int64_t>(begin)));
  return begin;
}

// True when the claim was given up: whoever had it is dead, or far too late.
bool SharedCache::wait_for(int64_t id, uint64_t claim, Turn* turn) {
  constexpr std::chrono::microseconds kLook{200};
  constexpr Millis kLate{10'000};
  const LeftTurn left(turn);
  const Deadline late(kLate);
  std::atomic_ref place_now(place(id));
  while (place_now.load(std::memory_order_acquire) == claim) {
    const auto process = static_cast<pid_t>(claim >> 2);
    const bool dead = ::kill(process, 0) != 0 && errno == ESRCH;
    if (dead || late.passed()) {
      uint64_t expected = claim;
      place_now.compare_exchange_strong(expected, 0);
      return true;
    }
    std::this_thread::sleep_for(kLook);
  }
  return false;
}

Sample SharedCache::get(int64_t id, const std::vector<Column>& columns, Turn* turn,
                        const std::function<Sample()>& make) {
  std::atomic_ref at_id(place(id));
  for (;;) {
    uint64_t now = at_id.load(std::memory_order_acquire);
    if (is_final(now)) {
      const Mapping chunk = chunk_at(now);
      TUTTI_CHECK(chunk.data() != nullptr, "sample {} of a cache at {}", id, now);
      const int64_t begin = static_cast<int64_t>(now) - chunk.offset();
      auto kept =
          unpacked(columns, {chunk.data() + begin, static_cast<size_t>(chunk.num_bytes() - begin)},
                   chunk.owner());
      TUTTI_CHECK(kept, "sample {} of a cache at {} reaches beyond its memory", id, now);
      return std::move(*kept);
    }
    if (is_claim(now)) {
      wait_for(id, now, turn);
      continue;
    }
    const bool claimed = now == 0 && at_id.compare_exchange_strong(now, claim_of(::getpid()));
    if (now != kNoRoom && !claimed) continue;
    std::atomic_ref(header().computed).fetch_add(1);
    try {
      Sample made = make();
      if (claimed) {
        const uint64_t kept = keep(made);
        at_id.store(kept == 0 ? kNoRoom : kept, std::memory_order_release);
      }
      return made;
    } catch (...) {
      if (claimed) at_id.store(0, std::memory_order_release);
      throw;
    }
  }
}

namespace {

class InMemory final : public OverOne {
 public:
  InMemory(ContentHandle below, int64_t most_bytes)
      : OverOne(std::move(below)), cache_(below_->size(), most_bytes) {}
  Sample read(Ref ref, Reading& reading) const override {
    return cache_.get(ref.id, below_->columns(), reading.turn,
                      [&] { return below_->read(ref, reading); });
  }
  SharedCache* cache() const override { return &cache_; }

 private:
  mutable SharedCache cache_;
};

class InFiles final : public OverOne {
 public:
  InFiles(ContentHandle below, const std::filesystem::path& folder)
      : OverOne(std::move(below)), cache_(folder, below_->size()) {}
  Sample read(Ref ref, Reading& reading) const override {
    if (auto known = cache_.find(ref.id, below_->columns())) return std::move(*known);
    Sample made = below_->read(ref, reading);
    cache_.keep(ref.id, made);
    return made;
  }

 private:
  mutable FileCache cache_;
};

}  // namespace

std::vector<SharedCache*> caches_of(const Dataset& dataset) {
  return caches_of(*Combining::content(dataset));
}

std::vector<SharedCache*> caches_of(const Content& content) {
  std::vector<SharedCache*> caches;
  content.visit([&](const Content& each) {
    if (each.cache() != nullptr) caches.push_back(each.cache());
  });
  return caches;
}

ContentHandle cached(ContentHandle below, int64_t most_bytes) {
  require_fixed(*below, "cache()");
  return std::make_shared<InMemory>(std::move(below), most_bytes);
}

ContentHandle cached(ContentHandle below, const std::filesystem::path& folder) {
  require_fixed(*below, "cache()");
  std::string what = below->fingerprint();
  if (what.empty())
    throw UsageError(fmt::format(
        "cache({}): what is kept in files is found by the names of stages and the state of files, "
        "which a lambda, an array or a generator has not; cache() keeps it in memory",
        folder.string()));
  for (const Column& column : below->columns()) what += "\n" + column.to_string();
  return std::make_shared<InFiles>(std::move(below), folder / sha256_hex(what).substr(0, 32));
}

}  // namespace tutti::data::detail
