#include "tutti/optim/both_gradients.h"

#include "tutti/base/detail/check.h"
#include "tutti/optim/kernels/dispatch.h"

namespace tutti::optim {

bool adds_gradients(const Rule& rule) noexcept {
  return std::holds_alternative<SgdOptions>(rule.options()) ||
         std::holds_alternative<AdamOptions>(rule.options()) ||
         std::holds_alternative<AdamWOptions>(rule.options());
}

void update_by_both(const Rule& rule, DType dtype, void* parameter, const void* first,
                    const void* second, std::span<void* const> states, int64_t num_elements,
                    const StepScalars& scalars) {
  TUTTI_CHECK(adds_gradients(rule) && first != nullptr && second != nullptr &&
                  (dtype == DType::float32 || dtype == DType::float64) &&
                  std::ssize(states) == rule.num_states() && scalars.count >= 1,
              "{}: two gradients of {}, {} states, update {}", rule.name(), tutti::name_of(dtype),
              states.size(), scalars.count);
  static const detail::Kernels& kernels = detail::kernels_for(best_variant());
  if (num_elements > 0)
    detail::update_with(kernels, rule.options(), dtype, parameter, first, states, num_elements,
                        scalars, 1.0, second);
}

}  // namespace tutti::optim
