/// What updaters share of their state for checkpoints: names, numbers as tensors, and the look at
/// what is to be taken back. Not for users. Thread rule: pure functions, but for copy_states().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/optim/rule.h"
#include "tutti/sync/detail/bucket_sums.h"
#include "tutti/sync/updater.h"

namespace tutti::detail {

/// Of the tensor that has the counts and powers of all parameters: [parameters, 5] float64.
inline constexpr const char* kScalarsName = "scalars";

/// "momentum/conv1.weight"
std::string state_tensor_name(std::string_view state, std::string_view parameter);

at::Tensor tensor_of_scalars(const std::vector<optim::StepScalars>& scalars);

/// The scalars in `state`, once all of it fits: kind, parameters (as in `layout`) and tensors (as
/// in `own`). Throws UsageError naming the first difference.
std::vector<optim::StepScalars> scalars_of(const UpdaterState& state, std::string_view kind,
                                           const Slots& layout, const NamedTensors& parameters,
                                           const NamedTensors& own);

/// From the tensors of `state` into those of the same names.
void copy_states(const UpdaterState& state, NamedTensors& own);

/// What compression keeps of a replica: "steps", "residual/NAME", "factor/NAME"; views of `state`.
NamedTensors tensors_of(const BucketState& state, const Slots& layout);

/// Copies of these. Throws UsageError naming what does not fit.
BucketState bucket_state_of(const NamedTensors& tensors, const Slots& layout,
                            const Compression& compression);

/// Throws UsageError unless `state` is of that kind.
void require_kind(const UpdaterState& state, std::string_view kind);

/// Throws UsageError unless these are the parameters of `layout`.
void require_parameters(const Slots& layout, const NamedTensors& parameters);

/// The tensor of that name; UsageError when there is none.
const at::Tensor& tensor_named(const UpdaterState& state, std::string_view name);

}  // namespace tutti::detail
