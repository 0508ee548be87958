// Pinned memory: the host's, which a queued copy reads or writes when it runs. As with CUDA's
// caching host allocator a block may be freed at once: it serves until the copies that know it have
// run.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/fake_cuda/memory.h"

namespace tutti::test::fake_cuda {
namespace {

struct PinnedBlock {
  size_t bytes = 0;
  std::vector<Mark> uses;  // the last one of each queue
};

struct PinnedBlocks {
  std::map<const char*, PinnedBlock> live;
  std::vector<std::pair<void*, PinnedBlock>> retired;  // freed, and still in use
};

// Guarded by lock_of_all(). Never destroyed, as the queues.
PinnedBlocks& pinned_blocks() {
  static PinnedBlocks& all = *std::make_unique<PinnedBlocks>().release();
  return all;
}

bool in_use(const PinnedBlock& block) {
  return !std::all_of(block.uses.begin(), block.uses.end(),
                      [](const Mark& m) { return reached(m); });
}

// The live block that holds an address; end() where none does.
auto pinned_block_at(const void* data) {
  auto& live = pinned_blocks().live;
  const auto* const address = static_cast<const char*>(data);
  auto after = live.upper_bound(address);
  if (after == live.begin()) return live.end();
  --after;
  return address < after->first + after->second.bytes ? after : live.end();
}

void free_retired() {
  std::erase_if(pinned_blocks().retired, [](const auto& block) {
    if (in_use(block.second)) return false;
    std::free(block.first);
    return true;
  });
}

void release_pinned(void* data) {
  const Lock lock(lock_of_all());
  auto node = pinned_blocks().live.extract(static_cast<const char*>(data));
  pinned_blocks().retired.emplace_back(data, std::move(node.mapped()));
  free_retired();
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t asked) override {
    const Lock lock(lock_of_all());
    free_retired();
    const size_t bytes = (asked + 64) / 64 * 64;
    void* data = std::aligned_alloc(64, bytes);
    TORCH_CHECK(data != nullptr, "the host has no ", bytes, " bytes left");
    std::memset(data, 0xff, bytes);
    pinned_blocks().live.emplace(static_cast<const char*>(data),
                                 PinnedBlock{.bytes = bytes, .uses = {}});
    return {data, data, &release_pinned, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

c10::Allocator& pinned_memory() {
  static PinnedMemory& only = *std::make_unique<PinnedMemory>().release();
  return only;
}

bool is_pinned(const void* data) {
  const Lock lock(lock_of_all());
  return pinned_block_at(data) != pinned_blocks().live.end();
}

void record_pinned_use(const void* data, const Mark& mark) {
  const Lock lock(lock_of_all());
  const auto found = pinned_block_at(data);
  if (found == pinned_blocks().live.end()) return;
  auto& uses = found->second.uses;
  const auto same = std::find_if(uses.begin(), uses.end(),
                                 [&](const Mark& use) { return use.queue == mark.queue; });
  if (same == uses.end()) {
    uses.push_back(mark);
  } else {
    *same = mark;
  }
}

}  // namespace tutti::test::fake_cuda
