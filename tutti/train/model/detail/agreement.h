/// What workers must have in common to train one model together; not for users.
/// docs/design/agreement.md. Thread rule: that of Model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// There is no other worker to agree with.
bool is_alone(const Strategy& strategy);

/// What compile() was asked for, and what the layers of the model compute, in lines. Functions are
/// known by their names, schedules by some of their rates too, modules by what they print of
/// themselves.
std::string compile_words(const CompileOptions& options, const Goals& goals,
                          const Model::State& model);

/// The same of fit(), with what was compiled, and numbers and names of the data.
std::string fit_words(const Compiled& compiled, const data::Dataset& train,
                      const FitOptions& options, uint64_t seed);

/// The same of evaluate(), and of predict(); UsageError for a callback that is null.
std::string evaluate_words(const data::LoaderOptions& loader, const Callbacks& callbacks);
std::string predict_words(const Callbacks& callbacks);

/// The same of load().
std::string load_words(const LoadOptions& options);

/// A Mismatch on every worker when what one says differs from worker 0's; it begins with
/// `operation`. Nothing where workers are not in step. Collective over them.
void require_same_words(Strategy& strategy, std::string_view operation, const std::string& own);

}  // namespace tutti::detail
