/// Gradients against differences of what the program itself computes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/hlo/ops.h"

namespace tutti::test {

/// Some function of float32 arguments.
struct Differentiated {
  std::vector<hlo::Shape> shapes;  ///< of the arguments
  std::function<hlo::Value(const std::vector<hlo::Value>&)> build;
  /// Elements of an argument are from here to there, all different and in no order.
  double lowest = -2, highest = 2;
  /// Between the two points of a difference, at most, in each element; less than what is between
  /// two elements where the function has corners.
  double step = 0.01;
  double tolerance = 2e-3;  ///< of a gradient's largest element, for each of its elements
};

/// Each gradient of sum(weights * build(arguments)), by central differences along some directions.
void expect_gradients(const std::string& name, const Differentiated& function);

/// All different, in no order.
std::vector<float> spread_floats(int64_t count, double lowest, double highest, unsigned seed);

}  // namespace tutti::test
