#include "tutti/cluster/join/detail/step_board.h"

#include <atomic>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

constexpr int kNumbers = 2;  // of a worker

std::atomic_ref<int64_t> training_in(const Mapping& page, int local_worker) noexcept {
  return std::atomic_ref(reinterpret_cast<int64_t*>(page.data())[kNumbers * local_worker]);
}

std::atomic_ref<int64_t> step_in(const Mapping& page, int local_worker) noexcept {
  return std::atomic_ref(reinterpret_cast<int64_t*>(page.data())[kNumbers * local_worker + 1]);
}

}  // namespace

StepBoard::StepBoard(SharedFile file)
    : file_(std::move(file)), page_(file_, 0, file_.size_bytes()) {}

StepBoard StepBoard::create(int num_workers) {
  SharedFile file = SharedFile::create("tutti-steps");
  const int64_t bytes = num_workers * kNumbers * static_cast<int64_t>(sizeof(int64_t));
  if (!file.reserve(0, bytes)) throw Error(fmt::format("launch: no memory for {} bytes", bytes));
  return StepBoard(std::move(file));
}

StepBoard StepBoard::open(int descriptor) { return StepBoard(SharedFile::duplicate(descriptor)); }

// Whoever is killed in between has no step of another training.
void StepBoard::note(int local_worker, Noted noted) const noexcept {
  const auto training = training_in(page_, local_worker);
  const auto step = step_in(page_, local_worker);
  if (training.load(std::memory_order_relaxed) != noted.training) {
    step.store(0, std::memory_order_release);
    training.store(noted.training, std::memory_order_release);
  }
  step.store(noted.step + 1, std::memory_order_release);
}

StepBoard::Noted StepBoard::noted_of(int local_worker) const noexcept {
  const int64_t step = step_in(page_, local_worker).load(std::memory_order_acquire) - 1;
  return {training_in(page_, local_worker).load(std::memory_order_acquire), step};
}

}  // namespace tutti::detail
