/// TuttiWork: what c10d hands to the program; TensorCall: the operation behind it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device_way.h"
#include "lane.h"

namespace tutti::python {

using Tensors = std::vector<at::Tensor>;

/// What an operation is called and what it takes and gives.
struct WorkFacts {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";        ///< in profiles: "tutti:all_reduce"
  Tensors inputs;                ///< for profiles
  std::vector<Tensors> outputs;  ///< value of the future: the list, or the list of lists
  uint64_t sequence = 0;
  c10::Device device{c10::kCPU};  ///< of all its tensors
};

/// Thread rule: as c10d::Work, any thread.
class TuttiWork final : public c10d::Work {
 public:
  TuttiWork(int rank, WorkFacts facts, std::shared_ptr<Lane> lane);

  /// Results are there, on a device too. Also gives the operation a push.
  bool isCompleted() override;
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override;
  /// Moves the operation in this thread. Of tensors on a device: results may still be on their way
  /// there then; the current queue of this thread waits for them, the host does not. Throws the
  /// failure of the group, or c10::Error when `timeout` passes first (the operation goes on).
  bool wait(std::chrono::milliseconds timeout) override;
  /// Has the current queue wait for the results of an operation that is completed, as wait() does.
  void synchronize() override;
  int sourceRank() const override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }

  /// Called once by the TensorCall, on the queue of `landed`, which is behind the results.
  void complete(std::exception_ptr failure, int source, DeviceMark landed) noexcept;

 private:
  bool drive_until(Millis limit);
  void finish_ended();

  const std::shared_ptr<Lane> lane_;
  const std::vector<Tensors> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const uint64_t sequence_;
  const c10::Device device_;
  int source_ = -1;    // written before the future is completed
  DeviceMark landed_;  // the same
};

class TensorCall : public Call {
 public:
  explicit TensorCall(c10::intrusive_ptr<TuttiWork> work) : work_(std::move(work)) {}

  /// Where the tensors are on a device; none on the CPU.
  std::unique_ptr<DeviceWay> way;
  bool ready() override { return way == nullptr || way->arrived(); }

  /// Keeps memory alive that operations use.
  const at::Tensor& keep(at::Tensor tensor);
  /// Copies `from` to `to` at the end.
  void copy_back(at::Tensor to, at::Tensor from);
  /// Carried out before the copies, at the end.
  std::function<void()> at_end;
  int source = -1;  ///< recv: filled in by the engine

  void finish(std::exception_ptr failure) noexcept override;

 private:
  void give_results();

  c10::intrusive_ptr<TuttiWork> work_;
  Tensors kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// A failure in c10d's classes: DistBackendError for what happened to the group, Error for the
/// rest.
std::exception_ptr as_c10d_error(const std::exception_ptr& failure) noexcept;

}  // namespace tutti::python
