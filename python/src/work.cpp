#include "work.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include "tutti/base/error.h"

#include "pace.h"
#include "progress.h"

namespace tutti::python {
namespace {

// A future of a device marks its current queue when it is completed, for who waits for it.
c10::intrusive_ptr<c10::ivalue::Future> future_of(const std::vector<Tensors>& outputs,
                                                  c10::Device device) {
  const auto list = c10::ListType::create(c10::TensorType::get());
  std::vector<c10::Device> devices;
  if (!device.is_cpu()) devices.push_back(device);
  if (outputs.size() > 1)
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(list), devices);
  return c10::make_intrusive<c10::ivalue::Future>(list, devices);
}

c10::IValue value_of(const std::vector<Tensors>& outputs) {
  if (outputs.size() > 1) return outputs;
  return outputs.empty() ? Tensors() : outputs.front();
}

c10::SourceLocation here(const char* function) { return {function, __FILE__, __LINE__}; }

}  // namespace

TuttiWork::TuttiWork(int rank, WorkFacts facts, std::shared_ptr<Lane> lane)
    : c10d::Work(rank, facts.type, facts.title, facts.inputs),
      lane_(std::move(lane)),
      outputs_(std::move(facts.outputs)),
      future_(future_of(outputs_, facts.device)),
      sequence_(facts.sequence),
      device_(facts.device) {}

bool TuttiWork::isCompleted() {
  if (!future_->completed()) {
    lane_->try_advance();
    lane_->finish_ended();
  }
  return future_->completed() && landed_.passed();
}

std::exception_ptr TuttiWork::exception() const {
  return future_->completed() && future_->hasError() ? future_->exception_ptr() : nullptr;
}

bool TuttiWork::wait(std::chrono::milliseconds timeout) {
  if (!drive_until(timeout == kNoTimeout ? kLongestLimit : timeout))
    TORCH_CHECK(false, "Operation timed out! Work::wait gave up after ", timeout.count(),
                " ms; the operation itself goes on until its group's limit");
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return completed_; });  // another thread may be in the middle of it
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  synchronize();
  return true;
}

void TuttiWork::synchronize() {
  if (device_.is_cpu() || !future_->completed()) return;
  DeviceQueue::current(device_, "").after(landed_, DeviceWay::kWaitForResults);
}

// Moves the lane in this thread: nothing has to be handed over to another one and back.
bool TuttiWork::drive_until(Millis limit) {
  if (future_->completed()) return true;
  const Deadline deadline(limit);
  const FineSleeps fine;
  Pace pace;
  pace.among(lane_->ranks_here());
  lane_->drivers.fetch_add(1);
  while (!future_->completed() && !deadline.passed()) {
    if (lane_->advance()) pace.moved();
    finish_ended();
    if (!future_->completed()) pace.pause();
  }
  lane_->drivers.fetch_sub(1);
  if (lane_->busy()) Progress::instance().watch(lane_);
  return future_->completed();
}

// A callback may wait for another operation of the lane: whoever runs it does not move the lane
// meanwhile, so the progress thread does.
void TuttiWork::finish_ended() {
  while (auto ended = lane_->take_ended()) {
    lane_->drivers.fetch_sub(1);
    if (lane_->busy()) Progress::instance().watch(lane_);
    ended->finish();
    lane_->drivers.fetch_add(1);
  }
}

int TuttiWork::sourceRank() const { return future_->completed() ? source_ : -1; }

Tensors TuttiWork::result() {
  isCompleted();  // a push
  TORCH_CHECK(future_->completed(),
              "Work needs to be completed before calling result(). Should call wait() before.");
  TORCH_CHECK(outputs_.size() <= 1,
              "work result does not support list of lists, use .getFuture() and value()");
  return outputs_.empty() ? Tensors() : outputs_.front();
}

void TuttiWork::complete(std::exception_ptr failure, int source, DeviceMark landed) noexcept {
  source_ = source;
  landed_ = std::move(landed);
  if (failure != nullptr)
    future_->setErrorIfNeeded(failure);
  else
    future_->markCompleted(value_of(outputs_));
  finish(std::move(failure));
}

const at::Tensor& TensorCall::keep(at::Tensor tensor) {
  return kept_.emplace_back(std::move(tensor));
}

void TensorCall::copy_back(at::Tensor to, at::Tensor from) {
  copies_.emplace_back(std::move(to), std::move(from));
}

// What is copied to a device is kept for its queue: the program may drop it at any time. What was
// copied from there was kept until the host had seen that copied.
void TensorCall::give_results() {
  const at::AutoDispatchBelowADInplaceOrView raw;
  if (at_end) at_end();
  for (auto& [to, from] : copies_) {
    to.copy_(from, /*non_blocking=*/way != nullptr);
    if (way != nullptr) way->from_host().uses(to);
  }
}

void TensorCall::finish(std::exception_ptr failure) noexcept {
  std::optional<OnQueue> on;  // until the future is completed, which marks this queue
  DeviceMark landed;
  if (failure == nullptr) {
    try {
      if (way != nullptr) on.emplace(way->from_host());
      give_results();
      if (way != nullptr) way->from_host().mark(landed);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) failure = as_c10d_error(failure);
  kept_.clear();
  copies_.clear();
  work_->complete(std::move(failure), source, std::move(landed));
  work_.reset();
}

std::exception_ptr as_c10d_error(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const UsageError& error) {
    return std::make_exception_ptr(c10::Error(here("tutti"), error.what()));
  } catch (const Timeout& error) {
    return std::make_exception_ptr(
        c10::DistBackendError(here("tutti"), fmt::format("tutti: Timed out : {}", error.what())));
  } catch (const Error& error) {
    return std::make_exception_ptr(
        c10::DistBackendError(here("tutti"), fmt::format("tutti: {}", error.what())));
  } catch (...) {
    return failure;
  }
}

}  // namespace tutti::python
