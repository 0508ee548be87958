/// The shm engine's class. Users call make_shm() of shm.h.
///
/// Each operation goes through four counts, in order: submitted >= published >= worked >=
/// completed. *Published*: announced in this rank's ring, with its data when that is small.
/// *Worked*: this rank has read all it needs from others and written its share. *Completed*: its
/// buffers are free. Thread rule: as Engine; abort() from any thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/shm/call.h"
#include "tutti/comm/shm/messages.h"
#include "tutti/comm/shm/segment.h"

namespace tutti::detail {

class ShmEngine final : public Engine {
 public:
  /// Claims the rank and announces it; wait_for_all() follows.
  ShmEngine(const ShmSegment& segment, int rank, bool all_threads);
  ~ShmEngine() override;
  /// Waits until every rank has joined.
  void wait_for_all(Millis limit, const std::function<std::string()>& loss);

  std::string_view name() const noexcept override { return "shm"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }
  bool one_process() const noexcept override { return all_threads_; }
  bool shares_memory() const noexcept override { return true; }

  Ticket submit(std::span<const Operation> batch) override;
  void progress(Ticket ticket, const Deadline& deadline) override;
  bool poll(Ticket ticket) override;
  void nudge() override;
  std::string lost_member() const override;
  void run(const Operation& operation) override;
  void abort(FailureKind kind, const std::string& text) noexcept override;
  std::shared_ptr<Engine> split(int color, int key, Millis limit) override;
  SharedParts allocate(int64_t bytes, Millis limit) override;

 private:
  friend class ShmMessages;

  enum class Path : uint8_t { undecided, small, direct, staged };

  struct Entry {
    const Operation* operation = nullptr;  ///< run()'s caller's, else `kept`
    Operation kept;
    uint32_t call = 0;
    Announced announced;
    bool in_line = false;  ///< its data, if small, travels in the line itself
    bool in_slot = false;  ///< its data or counts travel in a small slot
    Path path = Path::undecided;
    int64_t longest = 0;  ///< staged: elements of the longest part of all ranks
    int next_rank = 0;    ///< whose announcement is looked at next
    int64_t staged_chunks = 0;
    int64_t drained_chunks = 0;
    std::optional<TimePoint> deadline;  ///< set on submit, or when run() first sleeps
  };

  // What keeps the engine from going on: `flag` of `rank` has to reach `target`, for operation
  // `number`.
  struct Need {
    Flag* flag = nullptr;
    uint32_t target = 0;
    int rank = 0;
    uint64_t number = 0;
  };

  // A rank that an operation waits for.
  struct Silent {
    int rank;
    bool stopped;
    std::string did;
  };

  /// Instead of an operation's number while it waits for the others to join.
  static constexpr uint64_t kJoining = UINT64_MAX;
  /// The same for messages, which have no numbers.
  static constexpr uint64_t kMessage = UINT64_MAX - 1;

  // The four stages (shm_engine.cpp). All return true when they moved something.
  Entry& add_entry(const Operation& operation);
  void keep(Entry& entry);
  bool run_alone(const Entry& entry);
  bool publish();
  bool work();
  bool complete();
  bool advance(Ticket ticket);
  bool all_announced(Entry& entry, uint64_t number);
  bool peers_finished(uint64_t target, uint64_t number, Need& need);
  void announce(Entry& entry, uint64_t number);

  // Moving data (transfer.cpp, staged.cpp).
  Path choose_path(const Entry& entry, uint64_t number) const;
  void transfer_small(const Entry& entry, uint64_t number);
  void transfer_direct(const Entry& entry, uint64_t number);
  void reduce_direct(const Operation& operation, uint64_t number);
  void copy_direct(const Operation& operation, uint64_t number);
  bool transfer_staged(Entry& entry, uint64_t number);
  bool forces_staging(const Entry& entry, const CallLine& line) const;
  int64_t longest_part(const Operation& operation, uint64_t number) const;
  bool stage_chunk(Entry& entry, uint64_t number);
  bool drain_chunk(Entry& entry, uint64_t number);
  void fill_slot(const Entry& entry, std::byte* slot);
  void read_slots(const Entry& entry, uint32_t turn);
  int64_t chunk_elements(const Operation& operation) const;
  void combine(const Operation& operation, void* out, int64_t num_elements);
  Parts sent_by(int sender, const Operation& operation, uint64_t number) const;
  uint64_t place_of(const MemorySpan& span) const noexcept;
  std::byte* address_of(uint64_t place) const;

  /// Around reading and writing memory of other ranks. Entering and leave() throw when the group
  /// has failed: whose memory it is may have given it up. After an error in between nobody waits
  /// for this rank either.
  class MemoryOfOthers {
   public:
    MemoryOfOthers(ShmEngine& engine, uint64_t number);
    ~MemoryOfOthers() {
      if (inside_) lower();
    }
    MemoryOfOthers(const MemoryOfOthers&) = delete;
    void leave();

   private:
    void lower() noexcept;
    ShmEngine& engine_;
    const uint64_t number_;
    bool inside_ = true;
  };

  // Waiting and failing (faults.cpp).
  void wait_for_message(Ticket ticket, const Deadline& outer);
  std::string loss_of(int rank) const;
  void wait(const Need& need, const Deadline* outer);
  void look_for_failure(const Need& need, const Deadline* outer);
  void look_for_lost(const Need& need);
  void throw_if_poisoned(uint64_t number);
  [[noreturn]] void throw_poison(uint64_t number);
  [[noreturn]] void fail(FailureKind kind, const std::string& text, uint64_t number);
  [[noreturn]] void fail_mismatch(int other, uint64_t number);
  [[noreturn]] void fail_counts(int sender, int64_t sent, int64_t expected, uint64_t number);
  std::string operation_words(uint64_t number) const;
  std::string rank_words(int rank) const;
  int named(int rank) const noexcept { return state_.options.first_rank + rank; }
  int named_size() const noexcept {
    return state_.options.job_ranks > 0 ? state_.options.job_ranks : size_;
  }
  std::string last_call_words(int rank) const;
  std::vector<Silent> silent_ranks(const Need& need) const;
  std::string silent_words(const Need& need) const;
  bool is_behind(int rank, uint64_t number) const;
  bool is_dead(int rank) const;
  bool cannot_go_on(int rank) const noexcept;
  bool has_left(int rank) const { return blocks_[rank]->member.state.reached(kLeft); }
  bool is_stopped(int rank) const noexcept { return is_stopped(blocks_[rank]->member); }
  bool is_stopped(const MemberLine& member) const noexcept;
  std::string loss_while_joining(const std::function<std::string()>& loss) const;
  void wait_for_busy_peers() noexcept;

  // Chains of waits (awaited.cpp).
  ShmSegment::State& root() const noexcept;
  void say_waiting_for(int rank) noexcept;
  int end_of_waits(int rank) const noexcept;
  std::string awaited_words(int rank) const;

  Entry& entry_of(uint64_t number) { return entries_[number % kRingLines]; }
  const Entry& entry_of(uint64_t number) const { return entries_[number % kRingLines]; }
  CallLine& line_of(int rank, uint64_t number) const {
    return blocks_[rank]->ring[number % kRingLines];
  }

  const ShmSegment segment_;
  ShmSegment::State& state_;
  const int rank_;
  const int size_;
  const bool all_threads_;
  const ReductionShape shape_;
  const WaitPolicy policy_;
  std::vector<RankBlock*> blocks_;  ///< one per rank
  std::vector<int> root_ranks_;     ///< what its ranks are in the root
  const Poison& poison_;

  EngineCounter counter_{"shm"};
  std::array<Entry, kRingLines> entries_;
  uint64_t submitted_ = 0;
  uint64_t published_ = 0;
  uint64_t worked_ = 0;
  uint64_t completed_ = 0;
  std::vector<uint32_t> finished_;  ///< what is known of each rank's finished count
  Need publish_need_, work_need_, complete_need_;

  uint32_t chunk_base_ = 0;          ///< staged chunks of all operations before the one at work
  std::vector<Mapping> extents_;     ///< memory that all members map
  std::vector<const void*> inputs_;  ///< scratch of transfers, one per rank
  std::vector<void*> outputs_;
  std::unique_ptr<ShmMessages> messages_;
  Ticket message_ticket_ = 0;  ///< of messages, waited for last
  TimePoint next_look_{};      ///< when poll() looks for lost ranks again
};

}  // namespace tutti::detail
