/// What workers must have in common to train one model together; not for users.
/// Thread rule: that of Model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// All that fit() was asked for in which workers must not differ, a line each: options, what was
/// compiled, shapes and numbers of the data. Functions are known by their names, schedules by some
/// of their rates too.
std::string fit_words(const Compiled& compiled, const data::Dataset& train,
                      const FitOptions& options, uint64_t seed);

/// The same Mismatch on every worker when the words of one differ from worker 0's, with the first
/// line that does. Nothing where workers may come and go. Collective over workers.
void require_same_fit(Strategy& strategy, const std::string& own);

/// By rank, what its worker says. Collective over workers that are in step.
std::vector<std::string> texts_of_all(Strategy& strategy, const std::string& own);

}  // namespace tutti::detail
