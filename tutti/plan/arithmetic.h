/// What a model costs by counting: multiply-adds, parameters, and the one for each of the other,
/// which says how well it scales: a step computes for each sample, and sends for each parameter.
///
/// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "tutti/nn/graph.h"

namespace tutti::plan {

/// Of one sample, forward.
struct Arithmetic {
  /// Of products: convolutions, dense layers, attention (all places with all, causal or not). What
  /// works element by element is left out, as is usual.
  int64_t multiply_adds = 0;
  int64_t parameters = 0;         ///< trained ones, shared ones once
  int64_t largest_parameter = 0;  ///< elements of the largest
  int64_t values = 0;             ///< elements that all layers give

  /// For each parameter.
  double ratio() const {
    return static_cast<double>(multiply_adds) / static_cast<double>(parameters);
  }
  /// Floating-point operations of forward and backward: two a multiply-add, and backward has two
  /// products for each of forward's.
  double operations() const { return 6.0 * static_cast<double>(multiply_adds); }
};

Arithmetic arithmetic_of(const nn::Graph& graph);

}  // namespace tutti::plan
