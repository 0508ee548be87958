/// CountedInput: what is read of a step before its first batch, where a loss divides by the labels
/// that count in all of it. Not for users. Thread rule: read() and add_up() by each replica.
#pragma once

#include <vector>

#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

struct Epoch;

/// What is known of a step before its first batch.
struct StepInput {
  int64_t first = 0;               ///< batch
  std::vector<Tensors> columns{};  ///< by batch; empty: read when its turn comes
  std::vector<double> counted{};   ///< Divisors::counted

  Tensors take(const ReplicaContext& replica, const DistributedBatch& batch);
};

class CountedInput {
 public:
  CountedInput(const Goals& goals, int64_t num_inputs, bool accumulates);
  bool wanted() const noexcept { return wanted_; }  ///< there is such a loss
  /// For as many local replicas; between steps.
  void make_room(int replicas) { read_.resize(static_cast<size_t>(replicas)); }

  /// A local replica's parts of the batches from `first` to `end`, and what counts in them.
  StepInput read(int local, const Epoch& epoch, int64_t first, int64_t end);
  /// From then on what counts is that of all replicas. Collective over them.
  static void add_up(const ReplicaContext& replica, const World& world, StepInput& input);

 private:
  StepInput read_one(int local, const Epoch& epoch, int64_t first, int64_t end) const;
  void read_turn(int local, const Epoch& epoch, int64_t first, int64_t end);

  const Goals& goals_;
  int64_t num_inputs_;
  bool accumulates_;
  bool wanted_;
  std::vector<StepInput> read_;  // by local replica, until it asks
};

}  // namespace tutti::detail
