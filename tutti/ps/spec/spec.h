/// Spec: what all workers of a job train by, as they register it with the servers.
///
/// Every worker computes the same one; a server compares them, so that workers that disagree are
/// told so before the first step. Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/reduction_shape.h"
#include "tutti/optim/rule.h"
#include "tutti/ps/spec/lost_worker.h"
#include "tutti/ps/spec/placement.h"
#include "tutti/ps/spec/sparse_spec.h"
#include "tutti/ps/spec/staleness.h"

namespace tutti::ps {

/// Elements [begin, end) of a variable, inside a piece.
struct Segment {
  int variable = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset_bytes = 0;  ///< in the piece, a multiple of 64

  int64_t count() const noexcept { return end - begin; }
  bool operator==(const Segment&) const = default;
};

/// What is pushed, pulled, updated and handed on as one: some segments of one partition and one
/// dtype.
struct Piece {
  int partition = 0;
  DType dtype = DType::float32;
  std::vector<Segment> segments;  ///< by variable, then by element
  int64_t num_bytes = 0;

  bool operator==(const Piece&) const = default;
};

/// Pieces of about `piece_bytes`, in the order in which a forward pass first uses them: their
/// numbers are their priorities. Large shards are cut at multiples of 1,024 elements, small ones
/// share a piece. Partition p is what the placement gives to server p.
std::vector<Piece> pieces_of(const std::vector<Variable>& variables, const Placement& placement,
                             int64_t piece_bytes = kPieceBytes);

struct Spec {
  std::vector<Variable> variables;  ///< float32 or float64
  std::vector<Piece> pieces;
  /// Each is spread over all partitions: a key lives in server_of_key(key, num_partitions). The
  /// rule is that of the variables. Not with delay_compensation.
  std::vector<SparseTableSpec> tables;
  int num_partitions = 1;
  optim::Rule rule = optim::sgd();
  Staleness staleness;
  int num_workers = 1;
  ReductionShape shape = ReductionShape::flat(1);  ///< of the replicas of all workers
  /// Synchronous: a step counts once all workers but so many have pushed; the late are left out
  /// and the sum is scaled up to all (Chen et al. 2016, arXiv:1604.00981).
  int drop_slowest = 0;
  /// Synchronous: what becomes of the job. With wait servers keep the parameters of the step
  /// before, too, for a worker that comes again; not with tables.
  OnLostWorker on_lost_worker = OnLostWorker::end;
  /// Not synchronous: a gradient of staleness t counts 1 / t (Zhang et al. 2016, arXiv:1511.05950).
  bool scale_by_staleness = false;
  /// Not synchronous: lambda of DC-ASGD (Zheng et al. 2017, arXiv:1609.08326); 0: off.
  double delay_compensation = 0;
  bool stop_if_not_finite = true;  ///< else such gradients are left out and counted
  /// Synchronous, without drop_slowest and with stop_if_not_finite: the workers of one host push
  /// one sum and get parameters once (carriers.h).
  bool host_sums = false;
  /// Name of the snapshot that worker 0 gives values, states and counts from (snapshot.h); "": the
  /// job begins anew.
  std::string goes_on_from = {};
};

/// Throws UsageError, naming the field, what was got and expected, for what cannot be trained by.
void check(const Spec& spec);

/// Text that spec_from() reads; equal specs give equal texts.
std::string to_text(const Spec& spec);
/// Throws Error for a text that is none, and as check().
Spec spec_from(std::string_view text);

/// Where two specs differ first, for people: "the optimizer is adam, not sgd". "" when they agree.
std::string difference(const Spec& mine, const Spec& other);

/// Why `wanted` cannot go on from what `saved` trained: the first variable (by name), embedding
/// table or option of the optimizer that differs, got and expected. The learning rate may. "": it
/// can.
std::string model_difference(const Spec& saved, const Spec& wanted);

}  // namespace tutti::ps
