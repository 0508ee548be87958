/// The nccl engine's class. Users call make_nccl() of nccl.h.
///
/// A batch goes through three stages, in order: queued; *launched*, handed to NCCL, which may still
/// be connecting (the communicator does not block, so its state is asked); *recorded*, on the
/// engine's stream with an event behind it. Thread rule: as Engine; abort() from any thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/nccl/calls.h"

namespace tutti::detail::nccl {

class NcclEngine final : public Engine {
 public:
  /// Takes a communicator over that is ready, of rank `rank` of `size` on `device`.
  NcclEngine(ncclComm_t comm, int rank, int size, int device);
  ~NcclEngine() override;
  NcclEngine(const NcclEngine&) = delete;
  NcclEngine& operator=(const NcclEngine&) = delete;

  std::string_view name() const noexcept override { return "nccl"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }
  bool follows_shape() const noexcept override { return false; }
  bool reaches(const Place& place) const noexcept override {
    return place.kind == Place::Kind::cuda && place.device == device_;
  }

  Ticket submit(std::span<const Operation> batch) override;
  void progress(Ticket ticket, const Deadline& deadline) override;
  bool poll(Ticket ticket) override;
  void nudge() override;
  void run(const Operation& operation) override;
  void wait_on(Ticket ticket, Stream stream) override;
  void abort(FailureKind kind, const std::string& text) noexcept override;
  std::shared_ptr<Engine> split(int color, int key, Millis limit) override;
  SharedParts allocate(int64_t bytes, Millis limit) override;

  // For an engine that is made of this one. What it submits stands in one order with the rest.

  /// What is queued now on the streams of the operation's memory.
  std::vector<Event> mark_of(const Operation& operation) const;
  /// As submit(), behind `ready` alone.
  Ticket submit_after(std::span<const Operation> batch, std::vector<Event> ready);
  /// From or to host memory, which is pinned; as many bytes. `limit`: as an operation's.
  Ticket copy(const MemorySpan& to, const MemorySpan& from, Millis limit);
  /// Throws UsageError.
  void refuse_what_nccl_has_not(const Operation& operation) const;
  /// Once it has failed: returns when nothing of it is on the device any more, where it could use
  /// buffers that the program takes back; or after a second.
  void give_up_buffers();

 private:
  struct Batch {
    std::vector<Operation> operations;  ///< none: a copy
    MemorySpan to{}, from{};            ///< of the copy
    std::vector<Event> ready;           ///< on the caller's streams, when the batch was submitted
    Event done;
    TimePoint deadline;
    Millis limit{};
    enum Stage : uint8_t { queued, launched, recorded } stage = queued;
  };

  // Stages (nccl_engine.cpp).
  Ticket enqueue(Batch batch);
  void advance();
  void move_batches();
  void finish_batches();
  bool launch(Batch& batch);
  bool is_recorded(Ticket ticket) const { return recorded_ >= ticket; }
  void wait(const std::function<bool()>& reached, const Deadline& deadline);
  void look(const Deadline& deadline);
  std::string oldest_words() const;
  Batch* batch_of(Ticket ticket);

  // Failing (nccl_engine.cpp). `mutex_` is held by who calls NCCL.
  void check(ncclResult_t code, const char* call);
  void look_at_state();
  void store_failure(FailureKind kind, const std::string& text) noexcept;
  void throw_if_failed();
  void wait_until_settled(const ncclComm_t& comm, const Deadline& deadline);
  [[noreturn]] void fail(FailureKind kind, const std::string& text);

  // Operations as NCCL's calls (launches.cpp).
  void call(const Operation& operation);
  void reduce_parts(const Operation& operation);
  void gather_parts(const Operation& operation);
  void exchange_parts(const Operation& operation);
  void send_bytes(const MemorySpan& data, int to);
  void receive_bytes(const MemorySpan& data, int from);
  void copy_here(const MemorySpan& to, const MemorySpan& from);

  const int rank_;
  const int size_;
  const int device_;
  const ReductionShape shape_;
  cudaStream_t stream_ = nullptr;
  void* token_ = nullptr;  ///< device memory that a barrier reduces

  std::mutex mutex_;
  ncclComm_t comm_;  ///< null once aborted; guarded by mutex_

  std::list<ncclComm_t> parts_;  ///< of split: where NCCL writes them

  EngineCounter counter_{"nccl"};
  std::deque<Batch> batches_;  ///< that are not done, oldest first
  Ticket submitted_ = 0;
  Ticket recorded_ = 0;
  Ticket completed_ = 0;

  FirstFailure failure_;
};

/// A configuration of a communicator that never blocks.
ncclConfig_t nonblocking_config();

/// Asks until the communicator has left ncclInProgress; what it reached, or ncclInProgress when the
/// deadline passed.
ncclResult_t settle(ncclComm_t comm, const Deadline& deadline);

}  // namespace tutti::detail::nccl
