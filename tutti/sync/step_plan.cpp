#include "tutti/sync/detail/step_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

template <class T>
void clip_values_as(void* gradient, int64_t num_elements, double value) {
  T* const g = static_cast<T*>(gradient);
  const T most = static_cast<T>(value);
  // NaN stays NaN: it is to be seen.
  for (int64_t i = 0; i < num_elements; ++i)
    g[i] = g[i] > most ? most : g[i] < -most ? -most : g[i];
}

template <class T>
void scale_as(void* gradient, int64_t num_elements, double factor) {
  T* const g = static_cast<T*>(gradient);
  const T by = static_cast<T>(factor);
  for (int64_t i = 0; i < num_elements; ++i) g[i] *= by;
}

// As tf.clip_by_norm and tf.clip_by_global_norm: what is shorter stays as it is.
double scale_to(double most, double squares) {
  const double norm = std::sqrt(squares);
  return norm > most ? most / norm : 1.0;
}

void require_fit(const optim::Group& group, const Slots& layout) {
  std::vector<std::string> names;
  for (const ParameterSlot& slot : layout.slots) {
    if (optim::fits(group.pattern, slot.name)) return;
    names.push_back(slot.name);
  }
  throw UsageError(fmt::format("group \"{}\": no parameter has such a name; there are: {}",
                               group.pattern, fmt::join(names, ", ")));
}

}  // namespace

StepPlan::StepPlan(const optim::Recipe& recipe, const Slots& layout)
    : first_block_{0}, clip_(recipe.clip()), measures_(recipe.rule().measures()) {
  for (const optim::Group& group : recipe.groups()) require_fit(group, layout);
  for (const ParameterSlot& slot : layout.slots) {
    if (slot.trained && slot.dtype != DType::float32 && slot.dtype != DType::float64)
      throw UsageError(
          fmt::format("parameter \"{}\" is {}: tutti's own rules update float32 and float64; use a "
                      "torch optimizer",
                      slot.name, name_of(slot.dtype)));
    const optim::Group* const group = recipe.group_of(slot.name);
    rules_.push_back(recipe.rule_for(slot.name));
    factors_.push_back(group == nullptr ? 1.0 : group->learning_rate_factor);
    first_block_.push_back(first_block_.back() +
                           (slot.num_elements + kBlockElements - 1) / kBlockElements);
  }
}

void StepPlan::advance(std::span<optim::StepScalars> scalars, std::span<const uint8_t> used,
                       double learning_rate) const {
  for (size_t i = 0; i < scalars.size(); ++i)
    if (const auto parameter = static_cast<int>(i); used[i] != 0)
      scalars[i] = rule(parameter).next(scalars[i], rate(parameter, learning_rate));
}

void StepPlan::clip_values(DType dtype, void* gradient, int64_t num_elements) const {
  if (dtype == DType::float64)
    clip_values_as<double>(gradient, num_elements, clip_.value);
  else
    clip_values_as<float>(gradient, num_elements, clip_.value);
}

std::vector<double> StepPlan::scales(std::span<const double> squares,
                                     std::span<const uint8_t> used) const {
  std::vector<double> factors(rules_.size(), 1.0);
  double all = 0;
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (used[i] == 0) continue;
    double own = 0;
    for (int64_t block = first_block_[i]; block < first_block_[i + 1]; ++block)
      own += squares[static_cast<size_t>(block)];
    if (clip_.norm > 0) factors[i] = scale_to(clip_.norm, own);
    all += own;
  }
  if (clip_.global_norm > 0) std::ranges::fill(factors, scale_to(clip_.global_norm, all));
  return factors;
}

double StepPlan::add_blocks(std::span<const double> squares, std::span<const uint8_t> used) const {
  double all = 0;
  for (size_t i = 0; i < rules_.size(); ++i)
    for (int64_t block = first_block_[i]; used[i] != 0 && block < first_block_[i + 1]; ++block)
      all += squares[static_cast<size_t>(block)];
  return all;
}

double StepPlan::trust(int parameter, std::span<const optim::Squares> measured) const {
  if (!measures_) return 1;
  const auto i = static_cast<size_t>(parameter);
  optim::Squares all;
  for (int64_t block = first_block_[i]; block < first_block_[i + 1]; ++block)
    all += measured[static_cast<size_t>(block)];
  return rules_[i].trust(all);
}

void scale_gradient(DType dtype, void* gradient, int64_t num_elements, double factor) {
  if (factor == 1) return;
  if (dtype == DType::float64)
    scale_as<double>(gradient, num_elements, factor);
  else
    scale_as<float>(gradient, num_elements, factor);
}

}  // namespace tutti::detail
