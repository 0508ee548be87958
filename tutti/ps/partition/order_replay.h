/// OrderReplay: one partition of a recorded order (update_order.h), as a server follows it again:
/// which order comes next, and of which version the parameters are that a worker is given.
///
/// A worker computed its gradient of a piece on the version that its record names, whenever it
/// asked for it then. So a share of those values is kept from the moment when the piece has that
/// version until the gradient comes, and nobody is held up for a question that is late.
/// No I/O, no clock. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tutti/ps/partition/partition_state.h"
#include "tutti/ps/spec/update_order.h"

namespace tutti::ps {

class OrderReplay {
 public:
  OrderReplay(std::shared_ptr<const UpdateOrder> order, int partition);

  /// The order that comes after all that was handed in; null: that was all.
  const OrderRecord* next() const;
  /// next() has become an order of the log.
  void hand_in();
  /// What was handed in to a primary that is gone, and is not in the log, is to be handed in again.
  void take_over() noexcept { handed_in_ = followed_; }
  /// An order of the log was carried out, which is `record` of the state before it. Throws Error
  /// where another one comes next.
  void follow(const OrderRecord& record);
  /// Goes on behind so many records of orders: of a copy. What workers were to be given before is
  /// not known.
  void skip(int64_t num_records);
  /// To be called after each order: keeps what workers are to be given.
  void look(const PartitionState& state);

  using Values = std::pair<Bytes, int64_t>;  ///< and their version
  /// What `worker` is to be given of `piece`, by its question number `look` (0: with its gradient).
  /// May be the newest: {}; not yet: null.
  const std::optional<Values>* given(int worker, int piece, int64_t look);
  /// Whether `worker` is lost by what was handed in, and not there again.
  bool is_lost(int worker) const { return lost_.contains(worker); }
  /// Whether `worker` may yet be given what its question `look` asks for: its record, or that of a
  /// later one, is to come; or the worker is lost here before it was answered.
  bool may_give(int worker, int piece, int64_t look) const;
  /// How often `worker` has left; by the orders that were carried out, or were handed in.
  int64_t times_left(int worker) const;
  int64_t times_gone(int worker) const;
  /// Whether it comes again after what was handed in.
  bool comes_again(int worker) const;
  /// Gradients that the order has from here on; of `worker`, or of all (-1).
  int64_t updates_left(int worker) const;

 private:
  using Place = std::pair<int, int>;  // worker and piece
  struct Asked {                      // what a worker was given
    bool with_gradient = false;       // by its gradient alone
    size_t at = 0;                    // the record
  };

  void all_changed();
  void note(const OrderRecord& record);
  void take_looks(const PartitionState& state);
  void keep(const PartitionState& state, const Place& place);
  const std::vector<OrderRecord>& records() const { return order_->partitions[partition_]; }

  const std::shared_ptr<const UpdateOrder> order_;
  const size_t partition_;
  size_t handed_in_ = 0;
  size_t followed_ = 0;
  std::map<Place, std::vector<Asked>> asked_;    // in their order
  std::map<Place, size_t> at_;                   // the first that is not followed
  std::map<Place, std::optional<Values>> held_;  // for the next gradient
  std::map<Place, std::map<int64_t, std::optional<Values>>> looks_;  // by their number
  std::map<int, std::vector<int>> workers_of_;  // by piece: whose places there are
  std::set<int> changed_;                       // pieces of which look() has to keep something
  std::map<int, int64_t> left_, gone_;
  std::set<int> lost_;
  const std::optional<Values> newest_;
};

}  // namespace tutti::ps
