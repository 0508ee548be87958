#include "tests/unit/hlo/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "tutti/hlo/gradients.h"

#include "tests/support/hlo_evaluate.h"

namespace tutti::test {
namespace {

// A wrong element shows in each of them: no number of a direction is 0.
constexpr unsigned kDirections = 3;

// In double: what an element's step changes is lost in a sum of float32.
double weighted_sum(const Array& values, const std::vector<float>& weights) {
  const auto elements = values.as<float>();
  double sum = 0;
  for (size_t k = 0; k < weights.size(); ++k) sum += double(elements[k]) * double(weights[k]);
  return sum;
}

std::vector<int64_t> all_dimensions(const hlo::Value& value) {
  std::vector<int64_t> dimensions;
  for (size_t k = 0; k < value.shape().size(); ++k) dimensions.push_back(int64_t(k));
  return dimensions;
}

double largest_of(const std::vector<float>& elements) {
  double largest = 1e-3;
  for (const float element : elements) largest = std::max(largest, std::abs(double(element)));
  return largest;
}

Array moved_by(const Array& array, const std::vector<float>& along, double distance) {
  std::vector<float> elements = floats_of(array);
  for (size_t k = 0; k < along.size(); ++k) elements[k] += float(double(along[k]) * distance);
  return array_of(array.shape(), elements);
}

}  // namespace

std::vector<float> spread_floats(int64_t count, double lowest, double highest, unsigned seed) {
  std::vector<float> elements;
  for (int64_t k = 0; k < count; ++k)
    elements.push_back(float(lowest + (highest - lowest) * (double(k) + 0.5) / double(count)));
  std::mt19937 random(seed);
  std::shuffle(elements.begin(), elements.end(), random);
  return elements;
}

void expect_gradients(const std::string& name, const Differentiated& function) {
  SCOPED_TRACE(name);
  hlo::Program value_program("value"), gradient_program("gradient");
  std::vector<Array> arguments;
  std::vector<hlo::Value> of_value, of_gradient;
  for (const hlo::Shape& shape : function.shapes) {
    const hlo::Type type{DType::float32, shape};
    of_value.push_back(value_program.argument(type, "a"));
    of_gradient.push_back(gradient_program.argument(type, "a"));
    arguments.push_back(
        array_of(shape, spread_floats(hlo::num_elements(type), function.lowest, function.highest,
                                      unsigned(arguments.size()))));
  }
  value_program.result(function.build(of_value), "value");
  const hlo::Value value = function.build(of_gradient);
  const hlo::Value weights = gradient_program.argument(value.type(), "weights");
  const hlo::Value loss = hlo::reduce_sum(value * weights, all_dimensions(value));
  for (const hlo::Value gradient : hlo::gradients(loss, of_gradient))
    gradient_program.result(gradient, "gradient");

  const std::vector<float> factors = spread_floats(hlo::num_elements(value.type()), -1.5, 1.5, 7);
  std::vector<Array> with_weights = arguments;
  with_weights.push_back(array_of(value.shape(), factors));
  const std::vector<Array> gradients = evaluate(gradient_program, with_weights);

  const Evaluation values(value_program);
  for (size_t k = 0; k < arguments.size(); ++k) {
    const std::vector<float> found = floats_of(gradients[k]);
    const double allowed = function.tolerance * largest_of(found) * std::sqrt(double(found.size()));
    for (unsigned direction = 0; direction < kDirections; ++direction) {
      const std::vector<float> along =
          spread_floats(int64_t(found.size()), -1, 1.1, 100 + direction);
      const auto sum_at = [&](double distance) {
        std::vector<Array> moved = arguments;
        moved[k] = moved_by(arguments[k], along, distance);
        return weighted_sum(values.run({moved})[0][0], factors);
      };
      const double half = function.step / 2;
      EXPECT_NEAR(weighted_sum(gradients[k], along), (sum_at(half) - sum_at(-half)) / function.step,
                  allowed)
          << "argument " << k << ", direction " << direction;
    }
  }
}

}  // namespace tutti::test
