/// The hier engine's class. Users call make_hier() of hier.h.
/// Thread rule: as Engine; abort() from any thread.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/hier/hier.h"
#include "tutti/comm/hier/program.h"

namespace tutti::detail {

class HierEngine final : public Engine {
 public:
  explicit HierEngine(HierParts parts);
  ~HierEngine() override { parts_.across->answer_with({}); }

  std::string_view name() const noexcept override { return "hier"; }
  int rank() const noexcept override { return parts_.rank; }
  int size() const noexcept override { return shape_.replicas(); }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }

  Ticket submit(std::span<const Operation> batch) override;
  void progress(Ticket ticket, const Deadline& deadline) override;
  bool poll(Ticket ticket) override;
  void nudge() override;
  void run(const Operation& operation) override;
  void abort(FailureKind kind, const std::string& text) noexcept override;
  std::shared_ptr<Engine> split(int color, int key, Millis limit) override;
  SharedParts allocate(int64_t bytes, Millis limit) override;

  const HierParts& parts() const noexcept { return parts_; }

 private:
  struct Entry {
    Operation operation;
    Deadline deadline;
    std::optional<Program> program;
  };
  /// Elements that lie side by side in one buffer of the user, cut into slices.
  struct Region {
    MemorySpan span;
    std::vector<int64_t> cuts;          // slice s is [cuts[s], cuts[s + 1])
    std::vector<int64_t> local_counts;  // elements that each local rank carries
    int64_t mine_begin = 0;
    int64_t mine_count = 0;
  };

  // What each operation does (programs.cpp).
  Program program_of(Entry& entry);
  Program all_reduce(Entry& entry);
  Program all_reduce_whole(Entry& entry);
  Program reduce(Entry& entry);
  Program reduce_scatter(Entry& entry);
  Program all_gather(Entry& entry);
  Program broadcast(Entry& entry);
  Program barrier(Entry& entry);
  Program pass_on(Entry& entry);

  Ticket reduce_inside(const Entry& entry, const Region& region, const MemorySpan& partial);
  Ticket gather_inside(const Entry& entry, const Region& region);
  template <class Make>
  std::vector<Program::Until> on_rails(const Region& region, Make&& make);
  bool is_little(const MemorySpan& data) const;
  MemorySpan partial_of(const Region& region, int index);
  Region region_of(MemorySpan span) const;
  Region host_region(const MemorySpan& whole, std::span<const int64_t> counts, int host) const;
  Array& scratch(int index, DType dtype, int64_t num_elements);
  Operation with_limit(const Entry& entry, Operation operation) const;

  // The queue and its failures (hier_engine.cpp).
  void require_rails() const;
  bool advance(Ticket ticket);
  bool messages_in_flight();
  bool message_done(Ticket ticket);
  void throw_if_failed() const;
  [[noreturn]] void fail(const std::exception& error);
  std::pair<FailureKind, std::string> cause_of(const std::exception& error);
  Standing standing() const;
  std::string words() const;

  HierParts parts_;
  const ReductionShape shape_;
  const int slices_;
  int host_ = 0;   // of this rank
  int local_ = 0;  // rank inside
  std::vector<int> first_of_host_;
  int first_slice_ = 0;  // that this rank carries
  int end_slice_ = 0;

  EngineCounter counter_{"hier"};
  std::deque<Entry> entries_;  // the first is at work
  Operation last_;             // the last that was completed
  Ticket submitted_ = 0;
  Ticket completed_ = 0;
  std::map<Ticket, Ticket> messages_;  // those in flight, and what they are called across
  Ticket messages_submitted_ = 0;
  int splits_ = 0;
  std::array<Array, 2> scratch_;

  FirstFailure failure_;
};

}  // namespace tutti::detail
