/// The mpi engine's class. Users call make_mpi() of mpi.h.
///
/// A collective is announced to every rank when it is submitted, and carried out once it is the
/// oldest and every rank's announcement has come. Messages are independent of it. Thread rule: as
/// Engine; abort() from any thread.
#pragma once

#include <deque>
#include <list>
#include <map>

#include "tutti/base/array.h"
#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/mpi/control.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/mpi/plan.h"

namespace tutti::detail::mpi {

/// What a rank says of an operation that it calls; a part of up to kMpiInlineBytes follows it.
struct alignas(64) MpiCall {
  uint64_t number = 0;
  uint32_t call = 0;         ///< as pack_call()
  int64_t num_elements = 0;  ///< all_to_all: for the rank it is told to
  uint64_t counts = 0;       ///< of the list of counts that all ranks give alike
  bool operator==(const MpiCall&) const = default;
  std::string words() const;  ///< "all_reduce (sum) of 10 float32"
};
static_assert(sizeof(MpiCall) == 64);

class MpiEngine final : public Engine {
 public:
  /// `world_ranks`: of the members, in rank order.
  MpiEngine(MpiProcess& process, GroupComms comms, std::vector<int> world_ranks,
            ReductionShape shape, const MpiOptions& options);
  ~MpiEngine() override;

  std::string_view name() const noexcept override { return "mpi"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }
  bool follows_shape() const noexcept override { return !options_.any_order; }
  bool one_process() const noexcept override { return size_ == 1; }

  Ticket submit(std::span<const Operation> batch) override;
  void progress(Ticket ticket, const Deadline& deadline) override;
  bool poll(Ticket ticket) override;
  void run(const Operation& operation) override;
  void abort(FailureKind kind, const std::string& text) noexcept override;
  std::shared_ptr<Engine> split(int color, int key, Millis limit) override;
  SharedParts allocate(int64_t bytes, Millis limit) override;

 private:
  struct Entry {
    Operation operation;
    MpiCall call;
    TimePoint deadline;
    std::vector<std::byte> announcement;  ///< one for all, or one for each rank
    Requests announcing;
  };
  enum class Stage : uint8_t { idle, announced, stepping, finishing };

  struct Message {
    Ticket batch = 0;
    uint64_t number = 0;
    Operation operation;
    TimePoint deadline;
    enum Stage : uint8_t { waiting, found, opened } stage = waiting;  ///< recv: see messages.cpp
    std::vector<std::byte> room;  ///< recv: head, and what came with it
    int source = kAnyRank;
    Requests moving;
  };

  // Collectives (mpi_engine.cpp).
  void add_entry(const Operation& operation);
  void announce(Entry& entry);
  bool advance();
  bool advance_collectives();
  void expect_announcements();
  void take_announcement(int peer, int64_t bytes);
  void use_announcements();
  bool start_step();
  void finish_step();
  void add_inline(const Operation& operation);
  void copy_own_part(const Operation& operation) const;
  std::byte* inbox(int peer) const;
  bool is_done(Ticket ticket) const;

  // order = any (any_order.cpp).
  bool has_any_order(const Operation& operation) const;
  int64_t any_order_elements(const Operation& operation) const;
  int num_any_order_steps(const Operation& operation) const;
  void start_any_order(const Operation& operation);
  void finish_any_order(const Operation& operation);

  // Messages (messages.cpp).
  void add_message(const Operation& operation, Ticket batch);
  bool advance_messages();
  bool advance_message(Message& message);
  bool open_message(Message& message);
  bool stands_behind_another(const Message& message) const;

  // Waiting and failing (faults.cpp).
  void look(const Deadline* outer);
  void look_for_limits(const Deadline* outer);
  void look_for_lost();
  void look_while_exchanging(const std::string& what, const std::vector<int>& missing);
  void throw_if_failed(const std::string& what);
  [[noreturn]] void fail(FailureKind kind, const std::string& text, const std::string& what);
  void store_failure(FailureKind kind, int by, const std::string& text) noexcept;
  void give_up_buffers() noexcept;
  std::string entry_words(const Entry& entry) const;
  std::string message_words(const Message& message) const;
  std::string oldest_words() const;
  std::string rank_words(int rank) const;
  std::string last_call_words(int rank) const;
  std::string silent_words(const std::vector<int>& ranks) const;
  std::vector<int> awaited() const;
  std::vector<int> awaited_by(const Message& message) const;
  bool is_lost(int rank) const;
  bool keeps_waiting(int rank) const;
  void leave() noexcept;

  // Making groups (groups.cpp).
  std::vector<std::string> exchange(const char* what, const std::string& mine,
                                    const Deadline& deadline);

  MpiProcess& process_;
  const GroupComms comms_;
  const std::vector<int> world_ranks_;
  const int rank_;
  const int size_;
  const ReductionShape shape_;
  const MpiOptions options_;
  const MpiPlan plan_;
  std::unique_ptr<Control> control_;

  EngineCounter counter_{"mpi"};
  std::deque<Entry> entries_;  ///< collectives that are not done, oldest first
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  Stage stage_ = Stage::idle;  ///< of the oldest
  Requests headers_;
  Requests moving_;
  int step_index_ = 0;
  int num_steps_ = 0;
  MpiStep step_;
  Array inbox_;
  Array scratch_;
  std::vector<MpiCall> last_calls_;  ///< of each rank; number 0: none yet

  std::list<Message> messages_;  ///< that are not done, oldest first
  std::map<Ticket, int> open_batches_;
  Ticket batches_ = 0;
  uint64_t message_numbers_ = 0;
  std::vector<uint64_t> sent_;   ///< messages to each rank
  std::vector<uint64_t> taken_;  ///< messages of each rank
  TimePoint next_look_{};

  FirstFailure failure_;
};

}  // namespace tutti::detail::mpi
