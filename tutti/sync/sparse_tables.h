/// SparseTables: the embedding tables of a model, between its layers and where the rows are.
///
/// A forward pass reads rows; a step hands in the gradients of what its look-ups read. Rows are in
/// this process (every replica is a thread of it) or on parameter servers; both follow the same
/// contract, so that one is the oracle of the other:
///
/// * Each table is updated exactly once a step, also when nobody looked anything up: rows age.
/// * The gradients of a row are added in one order: those of a replica from its first look-up's
///   first place to its last one's last, then the replicas of a worker in the order of their
///   ranks, then the workers in theirs. A row without a gradient is not updated.
/// * Reading never makes a row.
///
/// Without LibTorch. docs/design/parameter_server.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/optim/rule.h"
#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/sync/world.h"

namespace tutti::ps {
class SparseTable;
}

namespace tutti {

enum PartInStep : uint8_t;  // vote.h

class SparseTables;
class Updater;

/// Keys that a forward pass looked up, as they came, and the gradients of their rows.
struct RowGradients {
  std::span<const uint64_t> keys;
  MemorySpan gradients;               ///< [keys, width] of the table's dtype
  std::shared_ptr<const void> owner;  ///< of both
};

/// What a layer over a table is to an optimizer. Thread rule: that of the replica that it is of;
/// connect() is called between steps.
class TableLayer {
 public:
  virtual ~TableLayer() = default;
  virtual const ps::SparseTableSpec& table() const = 0;
  /// When an optimizer is made, and again when its world has changed. `number`: of the table.
  virtual void connect(const std::shared_ptr<SparseTables>& tables, int number) = 0;
  /// Of the look-ups since the last call, in their order, those that got gradients; forgets all.
  virtual std::vector<RowGradients> take_gradients() = 0;
  /// Drops the gradients so far; look-ups whose loss is still to come stay.
  virtual void zero_gradients() = 0;
  /// The table has been restored: its rows are this optimizer's, as those that it has trained.
  virtual void rows_restored() = 0;
};

/// The layers of each local replica, in the order in which its module has them.
using TableLayers = std::vector<std::vector<std::shared_ptr<TableLayer>>>;

/// The tables of a replica's layers, each once, in the order of their first layers. Throws
/// UsageError for two tables of one name that differ.
std::vector<ps::SparseTableSpec> tables_of(const std::vector<std::shared_ptr<TableLayer>>& layers);

/// Thread rule: hand_in() and rows() by each replica in its own thread, all others between
/// steps.
class SparseTables : public std::enable_shared_from_this<SparseTables> {
 public:
  /// Where rows are.
  class Rows {
   public:
    virtual ~Rows() = default;
    virtual Array pull(int table, std::span<const uint64_t> keys) = 0;
    /// Keys may come more than once; their gradients are added in the order in which they come.
    virtual void push(int table, std::span<const uint64_t> keys, MemorySpan gradients,
                      double learning_rate) = 0;
    /// Of SparseTables::state() and restore().
    virtual ps::SparseTable& own(int table) = 0;
  };

  SparseTables(std::vector<ps::SparseTableSpec> specs, std::unique_ptr<Rows> rows);

  /// Goes on with these layers, which are connected, in this world.
  void bind(const World& world, TableLayers layers);

  /// The rows of `keys` as they are at the begin of this step, [keys, width]; the memory is the
  /// caller's.
  Array rows(int table, std::span<const uint64_t> keys);
  /// rows() calls it first, with the table's spec; nullptr: no more. Only where all replicas are of
  /// one thread.
  void on_look_up(std::function<void(const ps::SparseTableSpec&)> called);

  /// Where replicas take turns, between two steps: forgets what some have handed in of one that
  /// ended, with an error, before all had.
  void forget_step();
  /// Takes the gradients of a replica's layers, without samples none, and none of any
  /// replica where one leaves the step out; the last local replica updates the tables. To be called
  /// before Updater::step(): whoever has met the others there, or got its parameters from servers,
  /// may read the new rows.
  ///
  /// version  of the parameters, before the update. Throws UsageError for a second call at it.
  /// Returns whether that replica has gradients of rows.
  bool hand_in(int replica, PartInStep part, int64_t version, double learning_rate);

  /// Drops what was looked up and not handed in, between steps.
  void forget();
  /// Of TableLayer, by that replica.
  void zero_gradients(int replica);

  const std::vector<ps::SparseTableSpec>& specs() const noexcept { return specs_; }

  // ---- for checkpoints; throw UsageError where the rows are on servers ----

  /// That of the rule which updates them.
  std::string rule_name() const;
  /// All that tables are, by name, T being a table's number and n its rows: "T/keys" uint64 [n],
  /// ascending; "T/rows" [n, width]; "T/state/exp_avg" and so on, as rows; "T/scalars" float64
  /// [n, 5]: rate, three powers and count of a row's last update; "T/ages" int64 [n]. Copies.
  std::map<std::string, Array> state() const;
  /// Back, in the place of all rows. Throws DataError naming the array, or table and key, and
  /// changes nothing.
  void restore(const std::map<std::string, Array>& state);

 private:
  struct Lane {
    std::vector<std::shared_ptr<TableLayer>> layers;
    std::vector<std::vector<RowGradients>> gradients;  // by table
    int64_t handed_in = -1;                            // at this version
  };

  int number_of(const ps::SparseTableSpec& spec) const;
  void update(double learning_rate);

  std::vector<ps::SparseTableSpec> specs_;
  std::unique_ptr<Rows> rows_;
  std::function<void(const ps::SparseTableSpec&)> on_look_up_;
  World world_;
  std::mutex mutex_;  // of what follows, while replicas hand in
  std::vector<Lane> lanes_;
  int handed_in_ = 0;
  bool left_out_ = false;  // this step, by a replica
};

/// Tables in this process, all of whose rows are there.
std::unique_ptr<SparseTables::Rows> rows_here(const std::vector<ps::SparseTableSpec>& specs,
                                              const optim::Rule& rule);

/// Tables on the servers that `updater` is connected to, with the tables of its Spec.
std::unique_ptr<SparseTables::Rows> rows_on_servers(std::shared_ptr<Updater> updater,
                                                    Millis time_limit);

}  // namespace tutti
