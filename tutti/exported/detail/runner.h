/// Runs a plan. Thread rule: one thread at a time per call; a plan may run in several.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <vector>

#include "tutti/exported/detail/call_plan.h"

namespace tutti::exported::detail {

/// What the plan's outputs are for `values`, one for each of its inputs; those whose input is -1
/// are not looked at. Where this thread has an nn::SampleContext, calls that draw random numbers
/// draw those of its place and of their number in the whole graph, whichever part of it the plan
/// is; else, and in a step that a device makes again by itself, from generators. Autograd notes
/// down what is computed, unless the caller has switched it off. Throws what operators throw, with
/// the operator and its line of Python; UsageError for a list of another length than at export.
std::vector<c10::IValue> run_calls(const CallPlan& plan, std::vector<c10::IValue> values,
                                   c10::Device device);

}  // namespace tutti::exported::detail
