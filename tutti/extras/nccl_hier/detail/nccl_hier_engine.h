/// The class of the engine for devices of several hosts. Users call make_nccl_hier() of
/// nccl_hier.h.
/// Thread rule: as Engine; abort() from any thread.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/hier/program.h"
#include "tutti/comm/nccl/nccl_engine.h"
#include "tutti/comm/nccl/nccl_hier.h"

namespace tutti::detail::nccl {

/// Host memory that a device copies to and from while the host does something else.
class Pinned {
 public:
  explicit Pinned(int64_t bytes) {
    check_cuda(cudaHostAlloc(&data_, static_cast<size_t>(bytes), cudaHostAllocDefault),
               "cudaHostAlloc");
  }
  ~Pinned() { (void)cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
};

class NcclHierEngine final : public Engine {
 public:
  NcclHierEngine(NcclHierParts parts, std::shared_ptr<NcclEngine> inside, int device);
  ~NcclHierEngine() override;
  NcclHierEngine(const NcclHierEngine&) = delete;
  NcclHierEngine& operator=(const NcclHierEngine&) = delete;

  std::string_view name() const noexcept override { return "hier"; }
  int rank() const noexcept override { return parts_.rank; }
  int size() const noexcept override { return parts_.size; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }
  bool follows_shape() const noexcept override { return false; }
  bool reaches(const Place& place) const noexcept override { return inside_->reaches(place); }

  Ticket submit(std::span<const Operation> batch) override;
  void progress(Ticket ticket, const Deadline& deadline) override;
  bool poll(Ticket ticket) override;
  void nudge() override { advance(); }
  void run(const Operation& operation) override;
  void wait_on(Ticket ticket, Stream stream) override;
  void abort(FailureKind kind, const std::string& text) noexcept override;
  std::shared_ptr<Engine> split(int color, int key, Millis limit) override;
  SharedParts allocate(int64_t bytes, Millis limit) override;

 private:
  struct Entry {
    Operation operation;
    std::vector<Event> ready;  ///< on the caller's streams; until the first chunk takes them
    Deadline deadline;
    std::optional<Program> program;
  };
  /// Elements that are added up at once.
  struct Chunk {
    MemorySpan all;
    std::vector<int64_t> counts;  ///< by local rank: what it carries
    MemorySpan mine;
    MemorySpan staged;  ///< the same in pinned memory
  };

  // What an operation does.
  Program all_reduce(Entry& entry);
  Program barrier(Entry& entry);
  Chunk chunk_at(const MemorySpan& data, int64_t begin, int turn) const;
  int64_t elements_of_chunk(DType dtype) const;
  Ticket add_inside(Entry& entry, const Chunk& chunk);
  Program::Until add_between(const Entry& entry, const Chunk& chunk);
  void share_inside(const Entry& entry, const Chunk& chunk);
  void refuse_what_is_not_here(const Operation& operation) const;

  // The queue and its failures.
  void advance();
  void wait(const std::function<bool()>& reached, const Deadline& deadline);
  bool is_late() const { return !entries_.empty() && entries_.front().deadline.passed(); }
  void give_up();
  void throw_if_failed() const;
  [[noreturn]] void fail(const std::exception& error);
  std::string words() const;

  NcclHierParts parts_;
  const ReductionShape shape_;
  const int device_;
  std::array<std::unique_ptr<Pinned>, 2> staged_;  ///< in turn; outlives what is on the device
  std::shared_ptr<NcclEngine> inside_;

  std::deque<Entry> entries_;  ///< the first is at work
  Ticket submitted_ = 0;
  Ticket queued_ = 0;        ///< all that the host has to do for them is done
  std::deque<Ticket> ends_;  ///< of those: the last inside, where the device is not known to be
  Ticket completed_ = 0;     ///< on the device too
  Ticket last_inside_ = 0;

  FirstFailure failure_;
};

}  // namespace tutti::detail::nccl
