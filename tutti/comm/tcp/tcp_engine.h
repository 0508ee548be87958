/// The tcp engine's class. Users call make_tcp() of tcp.h.
///
/// Collectives are carried out one after the other: each is a Schedule, done round by round
/// (collectives.cpp). Messages stand beside them on the control links (messages.h). Whoever waits
/// moves everything; waiting.cpp sleeps, and tells what went wrong.
/// Thread rule: as Engine; abort() from any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/comm/engine/detail/failures.h"
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
  };

  enum class StepState : uint8_t { idle, moving, done };

  // Collectives (collectives.cpp). Functions that return bool say whether something moved.
  Entry& add_entry(const Operation& operation);
  bool advance();
  bool advance_collectives();
  bool advance_step(size_t i);
  bool move_bytes(PeerStreams& streams, bool sends);
  void begin_operation();
  void load_round();
  void finish_round();
  void finish_step(const Step& step);
  void complete_operation();
  Problem problem_of(const Entry& entry);
  Question question_of(const Entry& entry) const;
  void fill_offsets(std::vector<int64_t>& offsets, const std::vector<int64_t>& counts) const;
  int64_t chunk_elements(Algorithm algorithm, int64_t element_bytes) const;
  std::byte* place(Space space, int64_t element) const;
  std::byte* kept_of(int rank) const;
  Sink sink_of(const Step& step) const;
  FrameHeader data_header() const;

  // Waiting and failing (waiting.cpp).
  bool done(Ticket ticket) const noexcept;
  void wait_until_done(Ticket ticket, const Deadline* outer);
  bool sleep(const Deadline* outer);
  void service_control();
  void look_around(Ticket ticket, const Deadline* outer);
  void look_for_unclaimed();
  void throw_if_failed() const;
  void tell(FailureKind kind, const std::string& text);
  [[noreturn]] void fail(FailureKind kind, const std::string& text);
  [[noreturn]] void fail_late(Ticket ticket, Millis limit);
  [[noreturn]] void fail_lost(int rank, const std::string& why);
  [[noreturn]] void fail_unexpected(int from, const FrameHeader& got, int64_t expected_length);
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
  FileDescriptor waker_;        ///< an eventfd: abort() from another thread
  std::vector<PeerStreams> streams_;
  ControlLinks control_;
  Messages messages_;

  // Collectives: completed_ <= number < submitted_ are in the ring `entries_`.
  std::vector<Entry> entries_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  uint64_t batches_ = 0;  ///< of messages
  uint64_t num_messages_ = 0;
  int splits_ = 0;
  Ticket waited_for_ = 0;  ///< by the last call: 2 x the collectives before its end, or 2 x its
                           ///< batch of messages + 1

  // The operation at work, when begun_.
  bool begun_ = false;
  Schedule schedule_;
  int64_t round_ = 0;
  std::vector<Step> steps_;
  std::vector<StepState> states_;
  size_t steps_left_ = 0;  ///< sends and receives of the round that are not done
  int64_t element_bytes_ = 1;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::vector<int64_t> input_offsets_, output_offsets_;
  std::vector<std::byte> scratch_, kept_;  ///< grow, and are kept
  int64_t kept_stride_ = 0;
  std::vector<const void*> reduce_inputs_;
  int peer_at_work_ = 0;  ///< whose links are being used

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
