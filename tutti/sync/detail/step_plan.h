/// StepPlan: what a Recipe means for the parameters of Slots.
///
/// Norms are sums over the grid of 1,024-element blocks: whoever owns a block adds it up, and all
/// add the blocks in their order, so every replica comes to the same factors, bit for bit, however
/// the parameters are cut. Thread rule: immutable.
#pragma once

#include <span>
#include <vector>

#include "tutti/optim/recipe.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

class StepPlan {
 public:
  /// Throws UsageError for a group that fits no parameter, and for a trained parameter that is
  /// neither float32 nor float64.
  StepPlan(const optim::Recipe& recipe, const Slots& layout);

  const optim::Rule& rule(int parameter) const { return rules_[static_cast<size_t>(parameter)]; }
  /// The learning rate of one parameter where the step's is `learning_rate`.
  double rate(int parameter, double learning_rate) const {
    return factors_[static_cast<size_t>(parameter)] * learning_rate;
  }

  /// Counts a step with that learning rate: the scalars of the parameters that are used in it. Both
  /// by parameter; more of `used` is not looked at.
  void advance(std::span<optim::StepScalars> scalars, std::span<const uint8_t> used,
               double learning_rate) const;

  bool clips_values() const noexcept { return clip_.value > 0; }
  bool clips_norms() const noexcept { return clip_.norm > 0 || clip_.global_norm > 0; }
  bool measures() const noexcept { return measures_; }
  /// A gradient must be summed in full before the first parameter is updated.
  bool needs_sums() const noexcept { return clips_norms() || measures_; }

  int64_t num_blocks() const noexcept { return first_block_.back(); }
  /// The blocks of elements [begin, end) of a parameter, as numbers in [0, num_blocks()).
  int64_t block_at(int parameter, int64_t element) const {
    return first_block_[static_cast<size_t>(parameter)] + element / kBlockElements;
  }

  /// In place. `gradient` has elements of the parameter's dtype.
  void clip_values(DType dtype, void* gradient, int64_t num_elements) const;

  /// Factors of gradients, one a parameter, by which norms are clipped; 1 where not, or not used.
  ///
  /// squares  of all blocks
  std::vector<double> scales(std::span<const double> squares, std::span<const uint8_t> used) const;
  /// What all blocks of the parameters that are used add up to, block by block.
  double add_blocks(std::span<const double> squares, std::span<const uint8_t> used) const;
  /// What a parameter's rule makes of the norms; 1 for those that do not measure.
  double trust(int parameter, std::span<const optim::Squares> measured) const;

 private:
  std::vector<optim::Rule> rules_;    // by parameter
  std::vector<double> factors_;       // of learning rates, by parameter
  std::vector<int64_t> first_block_;  // by parameter, and behind the last
  optim::Clip clip_;
  bool measures_;
};

/// gradient *= factor; nothing for 1.
void scale_gradient(DType dtype, void* gradient, int64_t num_elements, double factor);

}  // namespace tutti::detail
