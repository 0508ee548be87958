/// An update by the gradients of two replicas, which are added as they are read.
///
/// Their sum is written nowhere, and all that an update reads comes in one pass: a third less of a
/// core's time than a sum and then an update (Zen 4; docs/design/optimizer_kernels.md).
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "tutti/optim/rule.h"

namespace tutti::optim {

/// Of sgd, adam and adamw, the rules that can.
bool adds_gradients(const Rule& rule) noexcept;

/// Rule::update() with the bits of one gradient that is first + second, element by element.
/// `rule`: one that adds_gradients(); the rest as there.
void update_by_both(const Rule& rule, DType dtype, void* parameter, const void* first,
                    const void* second, std::span<void* const> states, int64_t num_elements,
                    const StepScalars& scalars);

}  // namespace tutti::optim
