/// TuttiBackend: a tutti group as a c10d backend, for tensors on the CPU, and on GPUs by way of it.
///
/// Results are those of backend gloo, but summed in the order that
/// docs/design/order_of_summation.md fixes: the same bits on every rank and in every run. Refused
/// as gloo refuses: sparse operands (but for sum), AVG of integers, several tensors where one is
/// meant.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include "job.h"
#include "work.h"

// Virtual functions that c10d::Backend of 2.11 has, and that of 2.6 not (those between were not tried).
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11
#define TUTTI_TORCH_2_11
#define TUTTI_OVERRIDE_2_11 override
#else
#define TUTTI_OVERRIDE_2_11
#endif

namespace tutti::python {

/// Who forms the group and how it is called in errors.
struct BackendFacts {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};  ///< of an operation that names none
  std::string name;                      ///< of the group
  std::shared_ptr<Job> job;              ///< kept while the group lives
};

/// Thread rule: as c10d::Backend: any thread, calls of one group in the same order on every rank.
class TuttiBackend final : public c10d::Backend {
 public:
  TuttiBackend(Group group, BackendFacts facts);
  /// Drains what is open for a short while, then aborts.
  ~TuttiBackend() override;

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<Options> getBackendOptions() TUTTI_OVERRIDE_2_11 { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) TUTTI_OVERRIDE_2_11 {
    options_->timeout = timeout;
  }
  /// "shm", "tcp", "hier" or "solo".
  std::string engine_name() const;
  /// What watches over its members; none in a group of one.
  const std::shared_ptr<Job>& job() const noexcept { return job_; }

  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using TensorLists = std::vector<Tensors>;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  /// Rank 0 names who did not come; the group has failed then, as after any passed limit.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void setSequenceNumberForGroup() override {}  // every rank counts its own calls from 0
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
#ifdef TUTTI_TORCH_2_11
  c10d::ErrorType getError() override;
#endif
  /// Ends every operation, here and on the other members, with an error.
  void abort() TUTTI_OVERRIDE_2_11;
  /// Lets open operations come to their end.
  void shutdown() TUTTI_OVERRIDE_2_11;

 private:
  /// One operation being put together.
  struct Started {
    c10::intrusive_ptr<TuttiWork> work;
    std::shared_ptr<TensorCall> call;
    Millis limit;
    /// While tensors of a device are copied to the host: on the queue for that.
    std::unique_ptr<OnQueue> on_queue;
  };

  Started start(c10d::OpType type, const char* title, Tensors inputs, TensorLists outputs,
                std::chrono::milliseconds timeout);
  WorkPointer launch(Started started, bool somebody_waits);
  Millis limit_of(std::chrono::milliseconds timeout) const;
  void drain() noexcept;

  void add_all_reduce(Started& started, const at::Tensor& tensor, ReduceOp op);
  void add_all_gather(Started& started, const Tensors& outputs, const at::Tensor& input);
  void add_all_gather(Started& started, const at::Tensor& output, const at::Tensor& input);
  void add_reduce_scatter(Started& started, const at::Tensor& output, const at::Tensor& input,
                          ReduceOp op);
  WorkPointer message(Tensors& tensors, Collective kind, int other, int tag);

  const std::shared_ptr<Lane> lane_;
  const std::string name_;
  const std::shared_ptr<Job> job_;
  const pid_t pid_;
  const c10::intrusive_ptr<Options> options_;
  DevicesOfGroup devices_;
  std::atomic<uint64_t> sequence_{0};
};

/// An all-reduce of sparse tensors: gathers sizes, then indices and values, and adds them up.
std::shared_ptr<TensorCall> make_sparse_all_reduce(c10::intrusive_ptr<TuttiWork> work,
                                                   const at::Tensor& tensor, int size,
                                                   Millis limit);

/// monitoredBarrier() of `lane`'s group. Rank 0 waits until `timeout`, the others until `limit`.
void monitored_barrier(Lane& lane, Millis timeout, Millis limit, bool wait_all_ranks);

}  // namespace tutti::python
