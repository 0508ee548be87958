/// CommunicationOptions: by what replicas exchange what they add, as tf.distribute's options of
/// that name say it. Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/comm/schedule/schedule_choice.h"

namespace tutti {

/// What was chosen, and why.
struct CommunicationFacts {
  std::string asked = "auto";
  std::string engine = "none";  ///< none: nothing is exchanged between replicas
  std::string algorithm;        ///< ring or tree; "": by table, or the engine has none to choose
  std::string why = "the replicas take turns on one thread";
  Order order = Order::fixed;
};

struct CommunicationOptions {
  /// auto: what fits where the replicas are (docs/design/engines.md). An engine: shm (memory of one
  /// host), tcp (connections between all), hier (memory inside hosts, connections between them),
  /// mpi, nccl (GPUs). ring, tree: tcp, whose all-reduces go round a ring or along a tree.
  std::string implementation = "auto";
  /// Gradients are exchanged in packs of so many bytes, 64 to 2^30: between hosts the pieces of the
  /// fused step, elsewhere buckets. 0: as fits.
  int64_t bytes_per_pack = 0;
  Millis timeout{0};  ///< of every wait for another replica; 0: StrategyOptions::time_limit
  /// fixed: sums in the reduction shape, with the bits of one process. any: an engine may add in an
  /// order of its own, the same in every run and on all ranks (ring does). Nothing: any for ring,
  /// else fixed; on GPUs StrategyOptions::sum_order.
  std::optional<Order> order{};
  CommunicationFacts chosen{};  ///< of Strategy::options(): what it became; else not looked at
};

/// All that CommunicationOptions::implementation can be.
const std::vector<std::string>& communication_names();

/// Throws UsageError for what is out of range by itself: an unknown implementation (the nearest is
/// named), a ring in fixed order.
void check_communication(const CommunicationOptions& options);

/// What engines are asked for.
struct CommunicationPlan {
  std::string engine = "auto";  ///< auto, shm, tcp, hier, mpi, nccl
  std::string algorithm;        ///< ring or tree; "": the table's
  Order order = Order::fixed;
  AlgorithmTable table;
};

/// `table`: of all that ring and tree leave open: other collectives, and sums of 16-bit types,
/// whose partial sums those cannot send.
CommunicationPlan plan_of(const CommunicationOptions& options, const AlgorithmTable& table);

/// "engine tcp, all-reduces by ring, since ring was asked for; sums in any order"
std::string sentence_of(const CommunicationFacts& facts);

}  // namespace tutti
