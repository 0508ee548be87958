/// ServerState: what a parameter server decides: which orders enter the log of a partition, who is
/// told what, and who waits. Pure: no sockets, no clock; server.h carries it out.
///
/// An order is carried out once the partition's backup has it in its log, and nothing leaves
/// before: what a worker was told survives the loss of any one server.
/// docs/design/parameter_server.md. Thread rule: one thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tutti/ps/partition/cut.h"
#include "tutti/ps/partition/order_replay.h"
#include "tutti/ps/partition/partition_state.h"
#include "tutti/ps/view/view.h"

namespace tutti::ps {

class ServerState {
 public:
  /// `send` is called from within the calls below, for each message as it is decided; messages to
  /// one peer keep their order. It may drop what cannot be delivered.
  using Send = std::function<void(Peer, Message)>;
  /// Takes the cut of a partition once it is complete, within the calls below.
  using TakeCut = std::function<void(int partition, std::shared_ptr<PartitionCut>)>;
  /// Takes what an order is in the order of updates, right after it was carried out.
  using TakeRecord = std::function<void(int partition, const PartitionState&, const OrderRecord&,
                                        const Message& order)>;
  /// What is done with the order of updates; the same on all servers of a job.
  struct Ordering {
    TakeRecord take_record{};                             ///< null: it is not recorded
    std::shared_ptr<const UpdateOrder> replay = nullptr;  ///< null: no other one is followed
  };
  ServerState(int server, Compute compute, Send send, TakeCut take_cut, Ordering ordering);
  ServerState(int server, Compute compute, Send send, TakeCut take_cut = {})
      : ServerState(server, std::move(compute), std::move(send), std::move(take_cut), Ordering()) {}

  /// The next message of a peer. Throws Mismatch when the peer breaks the rules: its connection is
  /// then to be ended. Any other Error ends the server.
  void on_message(Peer from, Message message);
  /// A new view; older ones change nothing.
  void on_view(const View& view);
  /// A worker's or server's connection is there, or is gone.
  void on_connected(Peer peer);
  void on_closed(Peer peer, const std::string& how);
  /// Joining servers that have not been sent all of a partition yet.
  std::set<int> copies_to() const;
  /// Sends such a server the next chunk of each: some MiB of rows, so that a large table keeps
  /// nobody waiting. To be called when what was sent before has left.
  void continue_copies(int server);
  /// No worker is left: what this server leads, as it is, is cut `number`. Of what nobody has
  /// registered for it says that it is not written.
  void cut_all(int64_t number, const std::string& folder);

  const View& view() const noexcept { return view_; }
  int server() const noexcept { return server_; }
  /// Why this server has to end: it was replaced, or the job failed; "": it has not.
  const std::string& over() const noexcept { return over_; }
  /// Servers that this one has to be connected to, since it sends them its logs.
  std::vector<int> followers() const;
  /// Partitions that it has now, as primary or not.
  std::vector<int> partitions() const;
  const PartitionState& partition(int number) const { return hosted_.at(number).state; }

 private:
  struct Wish {  // a pull that waits
    int64_t step = 0;
    int64_t index = 0;  // not before this order is carried out: the worker's own push
    bool exactly = false;
    int64_t look = 0;  // Message::sequence of the pull
  };
  struct RowsWish {  // a sparse_pull that waits
    int table = 0;
    Wish when;
    std::vector<uint64_t> keys;
  };
  struct Hosted {
    explicit Hosted(PartitionState made) : state(std::move(made)) {}
    PartitionState state;
    std::deque<Message> unlogged;  // orders that the follower has yet to confirm
    int64_t last_index = 0;        // of the log
    // The follower is a joining server: it was sent all up to here (-1: not yet) ...
    int64_t copied_at = -1;
    std::optional<PartitionCopy> copy;  // of which it has not been sent the rest ...
    std::deque<Message> behind_copy;    // ... and orders that come behind it
    // ... has got it, so that its log is waited for; and with this index it has all.
    bool follows = false;
    int64_t synced_at = -1;
    // The follower was lost, and is sent nothing until a view says what to do: it may be made the
    // backup for what it had, and must not begin anew.
    bool cut_off = false;
    // Of the primary alone: a server that takes over begins no cut in its middle.
    std::shared_ptr<PartitionCut> cut;
    int64_t last_cut = 0;
    int64_t cut_view = 0;  // in which it began; its first mark may overtake the view itself
    std::map<int, std::map<int, Wish>> wishes;                // by piece and worker
    std::map<std::pair<int, int64_t>, RowsWish> rows_wishes;  // by worker and its number
    // Where an order is replayed: what has come and waits for its turn, by worker.
    std::optional<OrderReplay> replay;
    std::map<int, std::deque<Message>> early_pushes;
    std::map<int, Message> early_leases, early_hellos;
    std::string failed;  // why it cannot be followed
  };

  bool is_primary(int partition) const;
  int follower(const Hosted& hosted, int partition) const;
  void take_early();
  Hosted& host(int partition);
  void from_worker(const Message& message, Peer from);
  void from_primary(Message message, Peer from);
  void take_hello(Hosted& hosted, const Message& hello);
  void take_push(Hosted& hosted, Message push);
  void take_lease(Hosted& hosted, const Message& request);
  void take_bring(Hosted& hosted, const Message& request);
  static bool in_log(const Hosted& hosted, const Message& request);
  void take_wish(Hosted& hosted, const Message& request);
  void take_rows_wish(Hosted& hosted, const Message& request);
  static void forget_rows(Hosted& hosted, int worker);
  void say_who(const Message& request, const std::vector<int>& workers);
  std::string objection(const Hosted& hosted, const Message& message) const;
  static const Message* unlogged_push(const Hosted& hosted, int worker, int64_t sequence);
  void from_follower(const Message& message, int from);

  void submit(Hosted& hosted, Message order);
  bool waits_for_log(const Hosted& hosted, int partition) const;
  void carry_out_up_to(Hosted& hosted, int64_t index);
  void carry_out(Hosted& hosted, const Message& order);
  void answer_hello(Hosted& hosted, const Message& hello);
  void follow_cut(Hosted& hosted, const Message& order);
  void end_those_in_vain(const Hosted& hosted, const Message& order);
  void grant_wishes(Hosted& hosted, int partition);
  void grant_rows(Hosted& hosted, int partition);
  void send_parameters(const Hosted& hosted, const Message& pull);
  void send_values(const Message& pull, Bytes values, int64_t version);

  // Orders of updates (server_order.cpp).
  bool has_order() const { return ordering_.take_record || ordering_.replay; }
  std::vector<Settled> apply(Hosted& hosted, const Message& order);
  static bool is_lost(const Hosted& hosted, int worker);
  static bool is_early(const Hosted& hosted, int worker, int64_t sequence);
  static bool goes_on(const Hosted& hosted, int worker);
  void go_on_in_order();
  void go_on_in_order(Hosted& hosted, int partition);
  bool hand_in_next(Hosted& hosted, int partition, const OrderRecord& next);
  bool hand_in_push(Hosted& hosted, int partition, const OrderRecord& next);
  bool hand_in_leave(Hosted& hosted, int partition, const OrderRecord& next);
  void say_lost(int partition, int worker);
  void fail_replay(Hosted& hosted, int partition, const std::string& why);
  // Whether a wish is granted from what a replay keeps, or not yet.
  bool grant_replayed(Hosted& hosted, int partition, int piece, int worker, const Wish& wish);

  void take_role(int partition, const PartitionView& before);
  void lead(Hosted& hosted, int partition, const PartitionView& before);
  void send_log(Hosted& hosted, int partition);
  static void forget_copy(Hosted& hosted);
  void log_leavers(Hosted& hosted, int partition, const View& before);
  void send(Peer to, int partition, Message message);

  const int server_;
  const Compute compute_;
  const Send send_;
  const TakeCut take_cut_;
  const Ordering ordering_;
  View view_;
  std::set<Peer> connected_;
  int64_t primaries_since_ = 0;                  // view in which a primary changed last
  std::map<int, Hosted> hosted_;                 // by partition
  std::vector<std::pair<Peer, Message>> early_;  // of views that have not come yet
  std::string over_;
};

}  // namespace tutti::ps
