// Memory of the devices. What the statistics show is what CUDA's caching allocator would: a block
// is free for its stream when the host frees it. The bytes themselves are kept until the stream
// comes to the release; then they become NaN and serve again, and go back to the system only while
// no task is queued: a task that should have waited reads NaN, never memory that is not there.
#include "tests/support/fake_cuda/memory.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/guard.h"

namespace tutti::test::fake_cuda {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kUnit = 512;  // CUDA's caching allocator gives multiples of it
constexpr size_t kMostUnused = size_t{256} << 20;

struct Block {
  size_t bytes = 0;  // a multiple of kUnit
  int device = 0;
  int stream = 0;
  std::set<Queue*> used_by;  // other streams, by record_stream
};

struct DeviceFacts {
  size_t total = kMemory;
  uint64_t allocations_until_failure = 0;  // 0: none fails
  DeviceStats stats;
};

struct Memory {
  std::map<const char*, Block> blocks;  // by address
  std::unordered_map<size_t, std::vector<void*>> unused;
  size_t unused_bytes = 0;    // in `unused`: NaN, ready to serve
  size_t released_bytes = 0;  // whose stream has not yet come to the release
  std::array<DeviceFacts, kMostDevices> devices;
  double fraction = 1;
};

// Guarded by lock_of_all(). Never destroyed, as the queues.
Memory& memory() {
  static Memory& all = *std::make_unique<Memory>().release();
  return all;
}

// Large blocks are mapped each by itself: malloc would keep their space, in pieces.
constexpr size_t kMapped = size_t{1} << 20;

void* from_system(size_t bytes) {
  void* data = nullptr;
  if (bytes < kMapped) {
    data = std::aligned_alloc(64, bytes);
  } else {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) data = nullptr;
  }
  TORCH_CHECK(data != nullptr, "the host has no ", bytes, " bytes left for a fake device");
  return data;
}

void to_system(void* data, size_t bytes) {
  if (bytes < kMapped) {
    std::free(data);
  } else {
    munmap(data, bytes);
  }
}

// Gives memory back to the system where nothing queued can read it any more.
void trim() {
  const bool much = memory().unused_bytes > kMostUnused || memory().released_bytes > kMostUnused;
  if (!much) return;
  if (memory().unused_bytes + memory().released_bytes > 2 * kMostUnused) run_all();
  if (!all_are_empty()) return;
  for (auto& [bytes, blocks] : memory().unused) {
    for (void* data : blocks) to_system(data, bytes);
  }
  memory().unused.clear();
  memory().unused_bytes = 0;
}

void* take(size_t bytes) {
  trim();
  auto& ready = memory().unused[bytes];
  if (!ready.empty()) {
    void* data = ready.back();
    ready.pop_back();
    memory().unused_bytes -= bytes;
    return data;
  }
  void* data = from_system(bytes);
  std::memset(data, 0xff, bytes);
  return data;
}

void serve_again(void* data, size_t bytes) {
  std::memset(data, 0xff, bytes);
  memory().unused[bytes].push_back(data);
  memory().unused_bytes += bytes;
  memory().released_bytes -= bytes;
}

void release(void* data) {
  if (data == nullptr) return;
  const Lock lock(lock_of_all());
  const auto found = memory().blocks.find(static_cast<const char*>(data));
  const Block block = std::move(found->second);
  memory().blocks.erase(found);
  auto& stats = memory().devices.at(block.device).stats;
  stats.allocation[0].decrease(1);
  stats.allocated_bytes[0].decrease(block.bytes);
  stats.active_bytes[0].decrease(block.bytes);
  memory().released_bytes += block.bytes;
  auto& queue = queue_of(block.device, block.stream);
  if (frees_with_graph(queue, [data, bytes = block.bytes] { serve_again(data, bytes); })) {
    enqueue(queue, "free", [data, bytes = block.bytes] { std::memset(data, 0xff, bytes); });
    return;
  }
  if (block.used_by.empty()) {
    enqueue(queue, "free", [data, bytes = block.bytes] { serve_again(data, bytes); });
    return;
  }
  // CUDA's allocator looks for the end of the other streams' work now and then; none waits for it.
  auto& aside = queue_of(block.device, kStreams);
  enqueue_wait(aside, mark_of(queue));
  for (Queue* const user : block.used_by) enqueue_wait(aside, mark_of(*user));
  enqueue(aside, "free", [data, bytes = block.bytes] { serve_again(data, bytes); });
}

std::string size_words(size_t bytes) {
  char words[40];
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1024) {
    std::snprintf(words, sizeof words, "%.2f MiB", mib);
  } else {
    std::snprintf(words, sizeof words, "%.2f GiB", mib / 1024);
  }
  return words;
}

size_t limit_of(const DeviceFacts& facts) {
  return static_cast<size_t>(memory().fraction * static_cast<double>(facts.total));
}

void check_room(int device, size_t bytes) {
  auto& facts = memory().devices.at(device);
  const auto used = static_cast<size_t>(facts.stats.allocated_bytes[0].current);
  const bool fails = facts.allocations_until_failure > 0 && --facts.allocations_until_failure == 0;
  if (!fails && used + bytes <= limit_of(facts)) return;
  ++facts.stats.num_ooms;
  const std::string allowed =
      memory().fraction < 1 ? c10::str(" ", size_words(limit_of(facts)), " allowed;") : "";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   size_words(bytes), ". GPU ", device, " has a total capacity of ",
                   size_words(facts.total), " of which ", size_words(facts.total - used),
                   " is free.", allowed, " Of the allocated memory ", size_words(used),
                   " is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.");
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t asked) override {
    const Lock lock(lock_of_all());
    const int device = current_device();
    const c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    if (asked == 0) return {nullptr, nullptr, &release, place};
    const size_t bytes = (asked + kUnit - 1) / kUnit * kUnit;
    check_room(device, bytes);
    void* data = take(bytes);
    memory().blocks.emplace(
        static_cast<const char*>(data),
        Block{.bytes = bytes, .device = device, .stream = current_stream(device), .used_by = {}});
    auto& stats = memory().devices.at(device).stats;
    stats.allocation[0].increase(1);
    stats.allocated_bytes[0].increase(bytes);
    stats.active_bytes[0].increase(bytes);
    stats.requested_bytes[0].increase(asked);
    ++stats.num_device_alloc;
    return {data, data, &release, place};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    auto& queue = queue_of(current_device(), current_stream(current_device()));
    enqueue(queue, "copy_data", [=] { std::memcpy(to, from, bytes); });
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override {}

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const Lock lock(lock_of_all());
    const auto found = memory().blocks.find(static_cast<const char*>(data.get()));
    if (found == memory().blocks.end()) return;
    auto& block = found->second;
    Queue& user = queue_of_stream(stream);
    if (&user != &queue_of(block.device, block.stream)) block.used_by.insert(&user);
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Lock lock(lock_of_all());
    auto stats = memory().devices.at(device).stats;
    stats.reserved_bytes = stats.allocated_bytes;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const Lock lock(lock_of_all());
    auto& stats = memory().devices.at(device).stats;
    for (auto* one :
         {&stats.allocation, &stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*one)[0].reset_accumulated();
    }
    stats.num_ooms = 0;
    stats.num_device_alloc = 0;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    const Lock lock(lock_of_all());
    auto& stats = memory().devices.at(device).stats;
    for (auto* one :
         {&stats.allocation, &stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*one)[0].reset_peak();
    }
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const Lock lock(lock_of_all());
    const auto& facts = memory().devices.at(device);
    const auto used = static_cast<size_t>(facts.stats.allocated_bytes[0].current);
    return {facts.total - std::min(used, facts.total), facts.total};
  }
};

}  // namespace

c10::DeviceAllocator& device_memory() {
  static DeviceMemory& only = *std::make_unique<DeviceMemory>().release();
  return only;
}

int device_of_memory(const void* data) {
  const Lock lock(lock_of_all());
  const auto* const address = static_cast<const char*>(data);
  auto after = memory().blocks.upper_bound(address);
  if (after == memory().blocks.begin()) return -1;
  --after;
  return address < after->first + after->second.bytes ? after->second.device : -1;
}

void set_memory_fraction(double fraction) {
  const Lock lock(lock_of_all());
  memory().fraction = fraction;
}

void set_memory(int device, size_t total_bytes) {
  const Lock lock(lock_of_all());
  memory().devices.at(device).total = total_bytes;
}

void fail_allocation(int device, uint64_t nth) {
  const Lock lock(lock_of_all());
  memory().devices.at(device).allocations_until_failure = nth;
}

}  // namespace tutti::test::fake_cuda
