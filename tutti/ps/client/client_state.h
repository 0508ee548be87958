/// ClientState: what a worker decides: what it sends to which server, and what it still waits for.
/// Pure: no sockets, no clock; client.h carries it out.
///
/// A push is kept until its server says that it is through, and is sent again, under its number,
/// to whoever is the primary by then. Pushes leave by priority: the piece that the next forward
/// needs first goes first.
/// Thread rule: one thread.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/ps/client/detail/turns.h"
#include "tutti/ps/partition/cursor.h"
#include "tutti/ps/partition/meetings.h"
#include "tutti/ps/spec/carriers.h"
#include "tutti/ps/spec/spec.h"
#include "tutti/ps/view/view.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// What a worker hands in of one piece in one step. Every step brings every piece once; one that
/// was not used has no parts.
struct PushOrder {
  int piece = 0;
  int64_t step = 0;
  double learning_rate = 0;
  bool then_pull = true;  ///< wants the parameters for the next step
  std::vector<Part> parts;
  Bytes payload;
};

/// What a worker hands in of an embedding table in one step. Every step brings every table once,
/// also one of which no row was used.
struct SparseOrder {
  int table = 0;
  int64_t step = 0;
  double learning_rate = 0;
  std::vector<Bytes> payloads;  ///< by partition: keys, each once, then a row for each
};

struct ClientCounts {
  int64_t pushes = 0;   ///< handed in
  int64_t settled = 0;  ///< through: applied, dropped or not finite
  int64_t dropped = 0;
  int64_t not_finite = 0;
  int64_t resent = 0;
};

class ClientState {
 public:
  using Send = std::function<void(int server, Message)>;
  /// Parameters have come: of `piece`, good for `step`. Called within on_message().
  using Arrived = std::function<void(int piece, int64_t step, const Bytes& values)>;
  /// Where a piece begins; asked of the first worker that is not gone: worker 0, as a rule.
  using Initial = std::function<Bytes(int piece)>;
  /// Rows have come: of sparse_pull() `pull` those of `partition`. Called within on_message().
  using RowsArrived = std::function<void(int64_t pull, int partition, const Bytes& rows)>;
  /// Gives the messages, all assigns, by which `partition` goes on from a snapshot; asked of the
  /// same worker in place of Initial (Spec::goes_on_from). `assign` may be called at once or later,
  /// in the thread that has the state.
  using Restore = std::function<void(int partition, const std::function<void(Message)>& assign)>;
  ClientState(int worker, Spec spec, Send send, Arrived arrived, Initial initial,
              RowsArrived rows_arrived = {}, Restore restore = {});

  /// This worker gives the first values though workers before it may; those that come first count.
  /// Before the first view.
  void assign_always() noexcept { always_assigns_ = true; }

  /// ClientOptions::whose_gradient.
  void ask_whose_gradient(std::function<int(int piece)> asked) {
    whose_gradient_ = std::move(asked);
  }

  /// Pushes in the order in which its pushes are in a recorded one. Before the first view.
  void follow_order(const UpdateOrder& order);

  void on_view(const View& view);
  void on_connected(int server);
  void on_closed(int server);
  /// Throws Error for what no server says.
  void on_message(int server, const Message& message);
  /// The view service wants a cut (cut.h): this worker marks it between two steps.
  ///
  /// cut  Message::Kind::cut
  void on_cut(const Message& cut);

  /// Begins a step, as the first push of it does; to be called before others of this host see a
  /// gradient of it. `has_all`: all parameters of the step have come, also of pieces that others
  /// carry. Returns the cut that this worker has marked right before this step; 0: none.
  int64_t enter(int64_t step, bool has_all);
  /// What others of this host do in `step` is behind their mark of `cut`, so what this worker
  /// pushes for them is to be, too. Once knows_cut().
  void mark_with_host(int64_t cut, int64_t step);
  bool knows_cut(int64_t cut) const noexcept { return cut_.sequence >= cut; }

  /// Hands in a piece that this worker carries (carriers.h).
  void push(PushOrder order);
  void pull(int piece, int64_t step, bool again = false);  ///< again: the answer was lost
  void sparse_push(SparseOrder order);
  /// Asks every partition for rows of its keys, also where there are none: staleness is bounded by
  /// each. Returns the number of this pull.
  int64_t sparse_pull(int table, int64_t step, std::vector<Bytes> keys);
  /// Whether rows of that pull have not come.
  bool waits_for_rows(int64_t pull) const { return sparse_pulls_.contains(pull); }
  /// Sends the next push for `server`, if there is one that may go. To be called when what was sent
  /// before has left, so that a more urgent one need not wait behind it.
  bool send_next(int server);

  /// Where a worker begins: synchronous, the step of the first parameters that it got; 0 while they
  /// have not all come, and where workers are not in step.
  int64_t first_step() const noexcept { return first_step_; }
  /// Whether parameters that have come may be read: those that a worker begins with are of one
  /// version where lost workers are waited for, and may have to be asked for again.
  bool may_read() const noexcept { return begun_ || spec_.on_lost_worker != OnLostWorker::wait; }
  /// Version of the parameters of `piece` that came last.
  int64_t version(int piece) const { return versions_.at(piece); }
  /// Parameters that were asked for and have not come.
  bool waits_for(int piece) const { return wanted_.contains(piece); }
  /// Whether what others bring has not come.
  bool meets() const noexcept { return bring_.sequence > 0 && !brought_; }
  bool waits() const noexcept { return !wanted_.empty() || !sparse_pulls_.empty(); }
  /// Whether something that was sent or asked of `server`'s partitions has no answer.
  bool expects(int server) const;
  /// Pushes that are not through.
  int64_t num_unsettled() const noexcept;
  /// Asks the servers whom the parameters that have not come wait for; then words() knows.
  void ask_who();
  /// Asks for a batch; one question at a time. The answer is lease(), once it is there.
  void ask_lease(const LeaseRequest& request);
  const std::optional<Lease>& lease() const noexcept { return lease_; }
  /// Brings a value to the next meeting of those after `step` steps; one at a time. What all have
  /// brought is brought(), once it is there. Throws UsageError for more than most_bytes_brought().
  void bring(int64_t step, Bytes value);
  const std::optional<Brought>& brought() const noexcept { return brought_; }
  /// Asks for the counts of a partition, which its server sends as a message.
  void ask_counts(int partition) { send(partition, {.kind = Message::Kind::counts}); }
  /// What it waits for: "piece 3 of server 1 (host b, pid 77): worker 2 (host c, pid 9)".
  std::string words() const;

  /// Servers that it has to be connected to, by number.
  std::vector<int> servers() const;
  const View& view() const noexcept { return view_; }
  const Spec& spec() const noexcept { return spec_; }
  const ClientCounts& counts() const noexcept { return counts_; }
  /// Why the worker cannot go on; "": it can.
  const std::string& failure() const noexcept { return failure_; }
  /// Who is gone before it came, in words, where a step needs all workers; "": nobody.
  std::string missed_worker() const;

 private:
  struct Partition {
    bool welcome = false;  // its primary knows this worker
    int welcomes = 0;      // so far
    int num_pieces = 0;    // that this worker carries
    int64_t sequence = 0;  // of the last push sent
    int64_t num_sent = 0;  // by this worker, without what was sent again
    // By step and piece; tables come first, as numbers below 0: a forward begins with their rows.
    // Before both a mark of the step, as kMark.
    std::map<std::pair<int64_t, int>, PushOrder> unsent;
    std::map<int64_t, Message> unsettled;  // by sequence
    std::vector<int64_t> versions;         // of each table: what the worker has
    detail::Turns turns;
  };
  struct SparsePull {
    int table = 0;
    int64_t step = 0;
    std::map<int, Bytes> keys;           // by partition whose rows have not come
    std::map<int, std::string> waiting;  // by partition: for whom
  };

  static constexpr int kMark = std::numeric_limits<int>::min();

  int primary(int partition) const;
  void hand_in(int64_t step);
  void release_lease();
  void mark_if_between_steps();
  void mark(int64_t step);
  bool marks(int partition) const;
  void ask(int piece, int64_t step);
  std::map<std::pair<int64_t, int>, PushOrder>::iterator next_of(Partition& partition) const;
  void on_refused(const Message& message);
  void ask_rows(int64_t pull, int partition);
  void ask_rows_of(int partition);
  Message message_of(Partition& partition, int piece, PushOrder order);
  void on_rows(const Message& message);
  int table_of(int piece) const { return piece + static_cast<int>(spec_.tables.size()); }
  void say_hello(int partition);
  bool assigns() const;
  void on_welcome(int partition, const Message& message);
  void restore(int number);
  bool may_ask(int piece) const;
  void send_lease();
  void on_leased(const Message& message);
  void begin();
  void say_where_it_begins();
  void on_brought(const Message& message);
  void on_settled(Partition& partition, const Message& message);
  void on_parameters(const Message& message);
  void send(int partition, Message message);
  int partition_of(int piece) const { return spec_.pieces.at(piece).partition; }

  const int worker_;
  bool always_assigns_ = false;
  const Spec spec_;
  const Send send_;
  const Arrived arrived_;
  const Initial initial_;
  const RowsArrived rows_arrived_;
  const Restore restore_;
  std::function<int(int piece)> whose_gradient_;
  View view_;
  std::set<int> connected_;
  std::vector<Partition> partitions_;
  std::map<int, int64_t> wanted_;               // piece: step
  std::vector<int64_t> versions_;               // of each piece: what the worker has
  std::vector<int64_t> looks_;                  // of each piece: how often it has asked by pull()
  std::set<int> looked_;                        // pieces that pull() has asked for last
  std::map<int, std::string> waiting_;          // piece: for whom, as its server said
  std::map<int64_t, SparsePull> sparse_pulls_;  // by number
  int64_t last_pull_ = 0;
  ClientCounts counts_;
  int64_t first_step_ = 0;
  int64_t least_version_ = std::numeric_limits<int64_t>::max();  // of the first parameters
  bool begun_ = false;        // all of the first parameters have come
  bool knows_first_ = false;  // where it begins
  int64_t step_ = -1;         // of the last push
  int64_t handed_in_ = 0;     // pushes of that step
  int64_t each_step_ = 0;     // pushes that a step has
  bool in_batch_ = false;     // pushes of a batch that was not given back, or of a part of a step
  Message cut_;               // to be marked, or the last that was
  bool cut_open_ = false;     // to be marked
  int64_t marked_cut_ = 0;    // the last that was
  int64_t marked_step_ = -1;  // the one behind that mark
  int64_t lease_sequence_ = 0;
  bool lease_held_ = false;             // until the mark before it is settled
  std::optional<Message> lease_asked_;  // that has no answer
  std::optional<Lease> lease_;
  Message bring_;  // of the last meeting
  std::optional<Brought> brought_;
  std::string failure_;
};

}  // namespace tutti::ps
