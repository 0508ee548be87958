/// GradientSum: the gradients of one replica that wait for their update, added over backward
/// passes.
///
/// Autograd may give two parameters one buffer, so that nothing may be written to it; the sum is in
/// memory that no other tensor has, and autograd itself adds to it in the next pass.
/// Thread rule: one object a replica, used by that replica's thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tutti::detail {

class GradientSum {
 public:
  /// Puts the sums where the next backward pass adds to them, and where push() finds them. The
  /// parameters have no gradients.
  void put(const std::vector<at::Tensor>& parameters);

  /// Takes the gradients after a backward pass that began with put(); leaves none.
  void take(const std::vector<at::Tensor>& parameters);

  /// Multiplies all by `factor`, and sets `found` to 1 where one was not finite before; then sums
  /// are of no use. Both are float32, of one element, where the sums are; nobody waits.
  void scale(const at::Tensor& factor, at::Tensor& found);

  /// Adds those of another replica, which has none afterwards.
  void add(GradientSum& other);

  void clear();
  bool empty() const noexcept { return passes_ == 0; }
  int64_t passes() const noexcept { return passes_; }  ///< backward passes that wait

 private:
  std::vector<at::Tensor> sums_;  // by parameter; undefined: no gradient yet, or with autograd
  int64_t passes_ = 0;
};

}  // namespace tutti::detail
