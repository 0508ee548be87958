/// KeyedCache: what is costly to make and used by many reads: unpacked shards, row groups.
///
/// Thread rule: any thread. Two that ask for the same at once get what one of them makes.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace tutti::data::detail {

template <class T>
class KeyedCache {
 public:
  using Value = std::shared_ptr<const T>;

  /// The values kept, the last used, take up to `most_bytes` together, and are at least one.
  explicit KeyedCache(int64_t most_bytes) : most_bytes_(most_bytes) {}

  /// The value of `key`, made when it is not kept: make() gives it and its bytes. What make()
  /// throws is thrown by each who waits for it, and not kept.
  Value get(int64_t key, const std::function<std::pair<Value, int64_t>()>& make) {
    std::promise<Value> promise;
    {
      std::unique_lock lock(mutex_);
      if (const auto found = entries_.find(key); found != entries_.end()) {
        found->second.last_use = ++uses_;
        const std::shared_future<Value> value = found->second.value;
        lock.unlock();
        return value.get();
      }
      entries_[key] = {.value = promise.get_future().share(), .bytes = 0, .last_use = ++uses_};
    }
    try {
      auto [value, bytes] = make();
      promise.set_value(value);
      keep(key, bytes);
      return value;
    } catch (...) {
      promise.set_exception(std::current_exception());
      const std::lock_guard lock(mutex_);
      entries_.erase(key);
      throw;
    }
  }

 private:
  struct Entry {
    std::shared_future<Value> value;
    int64_t bytes = 0;  // 0 while it is made
    int64_t last_use = 0;
  };

  void keep(int64_t key, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    entries_[key].bytes = bytes;
    total_bytes_ += bytes;
    while (total_bytes_ > most_bytes_) {
      auto oldest = entries_.end();
      for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
        if (entry->first != key && entry->second.bytes > 0 &&
            (oldest == entries_.end() || entry->second.last_use < oldest->second.last_use))
          oldest = entry;
      if (oldest == entries_.end()) return;
      total_bytes_ -= oldest->second.bytes;
      entries_.erase(oldest);
    }
  }

  const int64_t most_bytes_;
  std::mutex mutex_;
  std::map<int64_t, Entry> entries_;
  int64_t total_bytes_ = 0;
  int64_t uses_ = 0;
};

}  // namespace tutti::data::detail
