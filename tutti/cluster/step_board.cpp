#include "tutti/cluster/step_board.h"

#include <atomic>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

std::atomic_ref<int64_t> number_of(const Mapping& page, int local_worker) noexcept {
  return std::atomic_ref(reinterpret_cast<int64_t*>(page.data())[local_worker]);
}

}  // namespace

StepBoard::StepBoard(SharedFile file)
    : file_(std::move(file)), page_(file_, 0, file_.size_bytes()) {}

StepBoard StepBoard::create(int num_workers) {
  SharedFile file = SharedFile::create("tutti-steps");
  const int64_t bytes = num_workers * static_cast<int64_t>(sizeof(int64_t));
  if (!file.reserve(0, bytes)) throw Error(fmt::format("launch: no memory for {} bytes", bytes));
  return StepBoard(std::move(file));
}

StepBoard StepBoard::open(int descriptor) { return StepBoard(SharedFile::duplicate(descriptor)); }

void StepBoard::note(int local_worker, int64_t step) const noexcept {
  number_of(page_, local_worker).store(step + 1, std::memory_order_relaxed);
}

int64_t StepBoard::step_of(int local_worker) const noexcept {
  return number_of(page_, local_worker).load(std::memory_order_relaxed) - 1;
}

}  // namespace tutti::detail
