/// The tcp engine's class. Users call make_tcp() of tcp.h.
///
/// Each collective is a Schedule, done round by round (collectives.cpp). They are carried out one
/// after the other, but for sums of different memory: of these one goes on in each lane, which has
/// links of its own, and number n in lane n % lanes. What is done is told in order. Messages stand
/// beside them on the control links (messages.h). Whoever waits moves everything; waiting.cpp
/// sleeps, and tells what went wrong. Thread rule: as Engine; abort() from any thread.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/engine/engine_counts.h"
#include "tutti/comm/tcp/control.h"
#include "tutti/comm/tcp/messages.h"
#include "tutti/comm/tcp/streams.h"
#include "tutti/comm/tcp/tcp.h"

namespace tutti::detail::tcp {

class TcpEngine final : public Engine, private ControlHandler {
 public:
  TcpEngine(TcpLinks links, TcpOptions options);
  ~TcpEngine() override;

  std::string_view name() const noexcept override { return "tcp"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }

  Ticket submit(std::span<const Operation> batch) override;
  void progress(Ticket ticket, const Deadline& deadline) override;
  bool poll(Ticket ticket) override;
  void nudge() override;
  bool can_be_lent() const noexcept override { return true; }
  int sums_at_a_time() const noexcept override { return static_cast<int>(lanes_.size()); }
  bool progress_until_woken(Ticket ticket) override;
  void wake() noexcept override;
  void answer_with(const std::function<Standing()>& standing) override { standing_ = standing; }
  std::string members_behind(Millis limit) override;
  void run(const Operation& operation) override;
  void abort(FailureKind kind, const std::string& text) noexcept override;
  std::shared_ptr<Engine> split(int color, int key, Millis limit) override;
  SharedParts allocate(int64_t bytes, Millis limit) override;

  const std::string& key() const noexcept { return options_.key; }
  Order order() const noexcept { return options_.order; }

 private:
  struct Entry {
    Operation operation;
    uint32_t call = 0;
    int64_t elements = 0;
    std::optional<TimePoint> deadline;  ///< set on submit, or when run() first sleeps
    bool done = false;
  };

  enum class StepState : uint8_t { idle, moving, done };

  /// Grow, and are kept.
  struct Buffers {
    std::vector<std::byte> scratch{}, kept{};
  };

  /// Where one operation at a time goes on.
  struct LinkLane {
    std::vector<PeerStreams> streams{};  ///< by rank
    bool begun = false;                  ///< else nothing of the rest counts
    uint64_t number = 0;                 ///< of the operation
    Schedule schedule{};
    int64_t round = 0;
    std::vector<Step> steps{};
    std::vector<StepState> states{};
    std::vector<TimePoint> began{};  ///< by step, where somebody listens to events; else empty
    size_t steps_left = 0;           ///< sends and receives of the round that are not done
    int64_t element_bytes = 1;
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::vector<int64_t> input_offsets{}, output_offsets{};
    Buffers own{};
    Buffers* buffers = nullptr;  ///< its own of a sum; of what goes alone the engine's
    int64_t kept_stride = 0;

    std::byte* place(Space space, int64_t element) const;
  };

  // Collectives (collectives.cpp). Functions that return bool say whether something moved.
  Entry& add_entry(const Operation& operation);
  bool advance();
  bool advance_collectives();
  bool may_begin(uint64_t number) const;
  bool advance_lane(LinkLane& lane);
  bool advance_step(LinkLane& lane, size_t i);
  bool move_bytes(PeerStreams& streams, bool sends);
  void tell(const LinkLane& lane, size_t i) const;
  void begin_operation(LinkLane& lane, uint64_t number);
  static void load_round(LinkLane& lane);
  void finish_round(LinkLane& lane);
  void finish_step(LinkLane& lane, const Step& step);
  Problem problem_of(LinkLane& lane);
  Question question_of(const Entry& entry) const;
  void fill_offsets(std::vector<int64_t>& offsets, const std::vector<int64_t>& counts) const;
  int64_t chunk_elements(Algorithm algorithm, int64_t element_bytes) const;
  std::byte* kept_of(const LinkLane& lane, int rank) const;
  Sink sink_of(const LinkLane& lane, const Step& step) const;
  FrameHeader data_header(const LinkLane& lane) const;

  // Waiting and failing (waiting.cpp).
  bool done(Ticket ticket) const noexcept;
  bool wait_until_done(Ticket ticket, const Deadline* outer, bool until_woken = false);
  bool sleep(const Deadline* outer);
  void service_control();
  void look_around(Ticket ticket, const Deadline* outer);
  void look_for_unclaimed();
  void look_for_unclaimed(uint64_t number, int r);
  void throw_if_failed() const;
  void tell(FailureKind kind, const std::string& text);
  [[noreturn]] void fail(FailureKind kind, const std::string& text);
  [[noreturn]] void fail_late(Ticket ticket, Millis limit);
  [[noreturn]] void fail_lost(int rank, const std::string& why);
  [[noreturn]] void fail_unexpected(int from, const FrameHeader& got, uint64_t at,
                                    int64_t expected_length);
  void ask_all(Millis limit);
  std::string silent_words(Ticket ticket) const;
  std::string behind_words(uint64_t number) const;
  std::string last_call_words(int rank) const;
  std::string operation_words(Ticket ticket) const;
  void wait_for_news(int rank, Millis limit);
  void wait_for_control(const Deadline& deadline);
  Standing standing() const;
  FrameHeader state_header(FrameKind kind) const;

  // ControlHandler.
  std::byte* room_for(int from, const FrameHeader& header) override;
  void on_frame(int from, const FrameHeader& header, std::span<const std::byte> payload) override;
  void on_written(int to, uint64_t message) override;

  LinkLane& lane_of(uint64_t number) { return lanes_[number % lanes_.size()]; }
  const LinkLane& lane_of(uint64_t number) const { return lanes_[number % lanes_.size()]; }
  Entry& entry_of(uint64_t number) { return entries_[number % entries_.size()]; }
  const Entry& entry_of(uint64_t number) const { return entries_[number % entries_.size()]; }

  const int rank_;
  const int size_;
  const TcpOptions options_;
  const ReductionShape shape_;
  const ShapeTree tree_;
  const bool flat_shape_;
  const uint32_t fingerprint_;  ///< of what must be equal on all ranks
  const int spins_;             ///< attempts before a wait sleeps
  const int spins_a_yield_;     ///< attempts after which the core is given away once
  FileDescriptor waker_;        ///< an eventfd: abort() and wake() from another thread
  std::atomic<bool> woken_{false};
  std::vector<LinkLane> lanes_;
  ControlLinks control_;
  Messages messages_;

  // Collectives: completed_ <= number < submitted_ are in the ring `entries_`; those before
  // completed_ are done.
  std::vector<Entry> entries_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  uint64_t batches_ = 0;  ///< of messages
  uint64_t num_messages_ = 0;
  int splits_ = 0;
  Ticket waited_for_ = 0;  ///< by the last call: 2 x the collectives before its end, or 2 x its
                           ///< batch of messages + 1

  EngineCounter counter_;
  Buffers alone_;
  std::vector<const void*> reduce_inputs_;
  int peer_at_work_ = 0;         ///< whose links are being used
  uint64_t number_at_work_ = 0;  ///< for which operation

  // What is known of the others: the last call of each as a frame told it.
  struct Known {
    bool called = false;
    uint64_t number = 0;
    uint32_t call = 0;
    int64_t elements = 0;
    bool answered = false;  ///< to the last question
    bool in_call = false;
  };
  std::vector<Known> known_;
  std::function<Standing()> standing_;  ///< of an engine above, which the members are asked about
  std::vector<pollfd> polls_;
  uint32_t polled_ = 0;

  FirstFailure failure_;
};

}  // namespace tutti::detail::tcp
