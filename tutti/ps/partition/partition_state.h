/// PartitionState: one partition of the parameters, as the sequence of its orders makes it.
///
/// Orders (hello, assign, push, sparse_push, mark, lease, begins, bring, leave, and pull where
/// gradients are compensated) are carried out in the order of the partition's log. The same orders
/// give the same state bit for bit, so that a backup that carries them out has what the primary
/// has. No I/O, no clock. Thread rule: one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tutti/ps/partition/cursor.h"
#include "tutti/ps/partition/meetings.h"
#include "tutti/ps/partition/partition_copy.h"
#include "tutti/ps/partition/partition_counts.h"
#include "tutti/ps/spec/carriers.h"
#include "tutti/ps/spec/update_order.h"
#include "tutti/ps/values/dense_piece.h"
#include "tutti/ps/values/sparse_shard.h"

namespace tutti::ps {

/// A push that is through.
struct Settled {
  int worker = 0;
  int64_t sequence = 0;
  int piece = 0;        ///< or table
  int64_t version = 0;  ///< of the piece or table, now
  uint32_t flags = 0;   ///< Message::dropped, Message::not_finite
  std::string text;     ///< what was not finite
};

class PartitionState {
 public:
  PartitionState(int partition, Compute compute);

  /// Why a request of a worker cannot become an order: another specification, a piece, step or
  /// number that cannot be. "" when it can. `name_of` says who worker n is.
  using Names = std::function<std::string(int worker)>;
  std::string objection(const Message& request, const Names& name_of = {}) const;
  /// Whether this push is an order already.
  bool has(int worker, int64_t sequence) const { return sequence <= last_sequence(worker); }
  /// Number of the worker's last push among the orders; 0: none.
  int64_t last_sequence(int worker) const;

  /// Whether that push waits in a round for those of others.
  bool in_round(const Message& push) const;
  /// What its worker was told when that push, which is through, was settled.
  Settled settled_again(const Message& push) const;

  /// Carries out the next order, and says which pushes are through with it.
  std::vector<Settled> apply(const Message& order);
  /// What an order that comes next is in the order of updates; none: it changes nothing there.
  std::optional<OrderRecord> record_of(const Message& order) const;
  /// Such orders that were carried out.
  int64_t num_records() const noexcept { return num_records_; }
  /// Answers that the last orders made possible, to requests for batches and to what was brought to
  /// meetings: messages for their worker.
  std::vector<Message> take_answers();
  /// Number of the worker's last request for a batch among the orders; and its answer, if it has
  /// one.
  int64_t last_lease(int worker) const;
  const Message* last_answer(int worker) const;
  /// What a worker gets that comes to a meeting: its answer once that is over, else nothing.
  std::optional<Message> answer_to_bring(const Message& bring) const;
  bool has_brought(const Message& bring) const;
  std::vector<int> waits_for_meeting(const Message& bring) const;
  int64_t num_orders() const noexcept { return num_orders_; }

  bool registered() const noexcept { return spec_.has_value(); }
  bool assigned() const noexcept { return unassigned_.empty() && registered(); }
  const Spec& spec() const { return *spec_; }

  /// The job's number of what `worker` calls `step`: out of step, one that came again counts from
  /// 0.
  int64_t step_of_job(int worker, int64_t step) const;
  /// Whether the parameters of `piece` are new enough to begin `step` of the job with.
  bool may_pull(int piece, int64_t step) const;
  /// Whom that waits for, also those that have left where a step needs all.
  std::vector<int> waits_for(int piece, int64_t step) const;
  /// The same of the rows of a table: synchronous, they are new enough when the sparse pushes of
  /// all workers for the step before are in them.
  bool may_pull_rows(int table, int64_t step) const;
  std::vector<int> waits_for_rows(int table, int64_t step) const;
  /// Throws Error when nobody has registered.
  const SparseShard& tables() const;
  /// Of the piece or table that a push is about.
  int64_t version_of(const Message& push) const { return version_of(target_of(push)); }
  /// Throws Error for a piece of another partition.
  const DensePiece& piece(int number) const;
  const std::map<int, DensePiece>& pieces() const noexcept { return pieces_; }  ///< by number
  /// What `worker` is to get for its pull: with compensation what its last order says, so that a
  /// pull that is repeated gets the same again.
  std::pair<Bytes, int64_t> values_for(int worker, int number) const;
  /// The values of `piece` in that version, where lost workers are waited for: the newest, or the
  /// one before. Throws Error for another.
  Bytes values_of_version(int number, int64_t version) const;
  bool is_here(int worker) const { return registered() && gate_->is_here(worker); }
  /// A worker whose push waits in a round that never ends, for the part of one that has left.
  struct Vain {
    int worker = 0;
    int without = 0;
    int64_t step = 0;
  };
  /// Synchronous, where the others do not go on without a lost worker.
  std::vector<Vain> pushed_in_vain() const;
  PartitionCounts counts() const;

  /// A state of its own that is equal to this one, with shares of its memory, for a cut: it gives
  /// no batches out.
  PartitionState fork();
  /// Of a synchronous fork: parts of `step` and later ones do not belong to it.
  void forget_rounds(int64_t step);
  /// Of a fork: what a worker has pulled is what `live` gave it.
  void share_pull(const PartitionState& live, const Message& pull);
  /// Whether all pieces and tables have had as many updates.
  bool none_behind(int64_t version) const;
  /// Of partition 0; nobody has a batch or waits for one.
  Cursor reopened_cursor() const;
  /// For whoever saves them: counts snapshots.
  SparseShard& own_tables() { return *tables_; }

  /// All that is known, for take() of a fresh state.
  PartitionCopy copy() const;
  /// Throws Error for a chunk that is none.
  void take(const Message& chunk);

 private:
  using Push = Message;
  // Of a push: whether it is about a table, and the number of that or of the piece.
  using Target = std::pair<bool, int>;
  struct Pulled {
    int64_t step = 0;
    int64_t version = 0;
    Bytes values;
  };
  static Target target_of(const Push& push) {
    return {push.kind == Message::Kind::sparse_push, push.piece};
  }
  int64_t version_of(const Target& target) const;
  std::string objection_to_push(const Message& push) const;
  std::string objection_to_rows(const Message& request) const;
  std::string objection_to_number(const Message& push) const;
  std::string objection_to_ranks(const Message& push) const;
  std::string objection_to_carrier(const Message& push) const;
  std::string objection_to_mark(const Message& mark) const;
  std::string objection_to_bring(const Message& bring) const;
  std::string objection_to_assign(const Message& request) const;
  std::string objection_to_hello(const Message& request, const Names& name_of) const;
  void enrol(const Spec& spec, int registrant);
  bool has_left_for_good(int worker) const;
  void on_hello(const Message& order);
  void on_assign(const Message& order);
  void restore_part(const Message& order);
  void on_pull(const Message& order);
  void on_push(const Message& order, std::vector<Settled>& settled);
  void on_mark(const Message& order, std::vector<Settled>& settled);
  void on_leave(int worker, std::vector<Settled>& settled);
  void remember(const std::vector<Settled>& settled);
  void on_lease(const Message& order);
  void answer_leases();
  void on_begins(const Message& order);
  void on_bring(const Message& order);
  void end_meetings();
  std::vector<int> workers_here() const;
  void add_to_round(const Push& push, std::vector<Settled>& settled);
  bool may_pull_from(const Target& target, int64_t step) const;
  std::vector<int> missing_for(const Target& target, int64_t step) const;
  int party_of(const Target& target, int worker) const;
  bool needs_all() const;
  std::set<int> parties(const Target& target) const;
  bool round_is_full(const Target& target) const;
  void finish_round(const Target& target, std::vector<Settled>& settled);
  void update_piece(int number, const std::vector<const Push*>& pushes, double scale,
                    double learning_rate);
  void finish_full_rounds(std::vector<Settled>& settled);
  void apply_alone(const Push& push, std::vector<Settled>& settled);
  std::optional<std::string> not_finite(const Push& push) const;
  bool leave_out(const Push& push, std::vector<Settled>& settled);
  DensePiece& own(int number) { return pieces_.at(number); }
  std::string rest() const;
  void restore_rest(std::string_view text);

  const int partition_;
  const Compute compute_;
  int64_t num_orders_ = 0;
  int64_t num_records_ = 0;
  std::optional<Spec> spec_;
  std::optional<Carriers> carriers_;
  int registrant_ = -1;  // whose hello brought the specification
  std::optional<StalenessGate> gate_;
  std::map<int, DensePiece> pieces_;  // by number
  std::set<int> unassigned_;          // pieces, and Message::kRest
  int64_t chunks_taken_ = 0;          // of rows, from a snapshot
  std::map<int, int64_t> sequences_;  // by worker: of the last push
  // By worker and sequence: the last that were not simply applied.
  std::map<int, std::map<int64_t, Settled>> flagged_;
  std::optional<SparseShard> tables_;
  // Synchronous: parts of the next update of each piece and table, by worker. Invariant: none is
  // older.
  std::map<Target, std::map<int, Push>> rounds_;
  // With compensation: what each worker has pulled of each piece.
  std::map<std::pair<int, int>, Pulled> pulled_;
  // Where lost workers are waited for: of each piece the parameters before its last update.
  std::map<int, Bytes> before_;
  int64_t first_step_ = 0;  // of the job: it may go on from a snapshot
  Meetings meetings_;       // of partition 0, as the cursor
  Cursor cursor_;
  std::map<int, int64_t> lease_asked_;  // by worker: number of the last request
  std::map<int, Message> lease_told_;   // by worker: the last answer
  std::vector<Message> answers_;
  PartitionCounts counts_;
  bool is_fork_ = false;
  std::vector<Bytes> taken_;  // blocks of the piece that chunks are about
};

/// Whether both have a part of one rank, so that they cannot be added.
bool ranks_clash(const Message& push, const Message& other);

/// The parts of a push and where their gradients begin. Throws Error when the payload is not so
/// many parts of `num_bytes`, or parts are not of `num_segments` and of ranks below `replicas`.
std::vector<const std::byte*> data_of_parts(const Message& push, int64_t num_bytes,
                                            size_t num_segments, int replicas);

}  // namespace tutti::ps
