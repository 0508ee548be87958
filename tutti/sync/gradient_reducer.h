/// GradientReducer: buckets of gradients, all-reduced while backward goes on.
///
/// Gradients are copied into buckets as they become ready; a full bucket is submitted, in one order
/// on all ranks, and advances whenever the next gradient comes. The first step uses the reverse
/// order of the parameters; then rank 0's observed order is taken by all. Li et al. 2020,
/// arXiv:2006.15704.
///
/// Thread rule: one object a replica, used by that replica's thread; backward runs there too.
#pragma once

#include <torch/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/comm/group.h"
#include "tutti/sync/gradients.h"
#include "tutti/sync/layout.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

/// Parameters whose gradients travel together: consecutive in the order, of one dtype.
struct Bucket {
  std::vector<int> parameters;
  int64_t begin_bytes = 0;  ///< in the reducer's memory
  int64_t num_elements = 0;
  DType dtype = DType::float32;
};

/// Cuts trained parameters, in `order`, into buckets: a new one at each change of dtype and when
/// the limit is reached. Every gradient starts on a 64-byte line: `offsets` (by parameter, bytes)
/// says where.
std::vector<Bucket> plan_buckets(const Layout& layout, std::span<const int> order,
                                 const ReplicatedOptions& options, std::vector<int64_t>& offsets);

class GradientReducer {
 public:
  /// Collective: allocates the buckets. `op`: sum (strategies) or mean (Horovod's shape).
  GradientReducer(Group group, const Layout& layout, std::vector<at::Tensor> parameters,
                  ReduceOp op, const ReplicatedOptions& options, Millis limit);

  /// Hands in what the hooks have not seen: gradients[i] undefined means unused here. Starts the
  /// rest.
  void finish(std::span<const at::Tensor> gradients, double weight);

  /// Waits for all buckets and sets each parameter's grad to its reduced value: a view of a bucket,
  /// good until the next backward, or undefined when no rank used the parameter.
  void wait();

 private:
  void gradient_ready(int parameter);
  void place(int parameter, const at::Tensor* gradient);
  void submit_full_buckets();
  void adopt(std::span<const int> order);
  void agree_on_order();
  void reset();

  Group group_;
  Layout layout_;
  std::vector<at::Tensor> parameters_;
  ReduceOp op_;
  ReplicatedOptions options_;
  Millis limit_;
  SharedParts memory_;
  std::byte* base_ = nullptr;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> offsets_;     // of each parameter's gradient, in bytes
  std::vector<int> bucket_of_;       // by parameter
  std::vector<at::Tensor> views_;    // by parameter, into the buckets
  std::vector<int> missing_;         // gradients each bucket waits for
  std::vector<uint8_t> placed_;      // by parameter, in this step
  std::vector<int32_t> used_;        // by parameter; reduced by max
  std::vector<int> observed_order_;  // of the first step
  std::vector<Work> works_;
  size_t submitted_ = 0;  // buckets handed to the group in this step
  bool order_agreed_ = false;
  ReadyHooks hooks_;
};

}  // namespace tutti::detail
