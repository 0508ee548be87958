#include "tutti/cli/bench/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tutti::cli {
namespace {

struct Counted {
  int64_t bytes, work;
};

struct Counts {
  std::atomic<bool> counting{false};
  std::mutex mutex;  // over the rest
  int64_t work = 0;  // how many have begun
  int64_t live = 0, peak = 0;
  std::unordered_map<void*, Counted> blocks;  // by address, of those that were counted

  void begin() {
    const std::lock_guard lock(mutex);
    ++work;
    live = peak = 0;
    counting = true;
  }
  void add(void* block, int64_t bytes) {
    const std::lock_guard lock(mutex);
    live += bytes;
    peak = std::max(peak, live);
    blocks.insert_or_assign(block, Counted{bytes, work});
  }
  void take(void* block) {
    const std::lock_guard lock(mutex);
    const auto counted = blocks.extract(block);
    if (!counted.empty() && counted.mapped().work == work) live -= counted.mapped().bytes;
  }
};

Counts& counts() {
  static Counts* const all = std::make_unique<Counts>().release();  // tensors may outlive statics
  return *all;
}

void end_counted(void* block) {
  counts().take(block);
  c10::GetDefaultCPUAllocator()->raw_deallocate(block);
}

// Tensors may outlive its use: it stays, as LibTorch's own does. A block is its own context, for
// oneDNN allocates by raw pointers and gives them back to whichever allocator there is then.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto& usual = *c10::GetDefaultCPUAllocator();
    if (!counts().counting || bytes == 0) return usual.allocate(bytes);
    void* const block = usual.raw_allocate(bytes);
    counts().add(block, static_cast<int64_t>(bytes));
    return {block, block, &end_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end_counted; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

TensorMemory::TensorMemory() {
  static CountingAllocator counting;
  c10::SetCPUAllocator(&counting);
}

TensorMemory::~TensorMemory() {
  counts().counting = false;
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
}

void TensorMemory::begin() { counts().begin(); }

int64_t TensorMemory::peak() const {
  const std::lock_guard lock(counts().mutex);
  return counts().peak;
}

int64_t TensorMemory::end() {
  counts().counting = false;
  return peak();
}

}  // namespace tutti::cli
