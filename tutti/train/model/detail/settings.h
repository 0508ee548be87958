/// What decides on the course of a training, in words and numbers, for workers and checkpoints to
/// compare; not for users. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// What compile() was told to update with.
std::string optimizer_words(const OptimizerChoice& choice);

/// An output's loss, its weight and metrics.
std::string goal_words(const Goal& goal);

/// The rates of some steps up to a million, or to the first that one's own schedule does not serve;
/// empty: there is no schedule.
std::vector<double> rates_of(const std::optional<RateSchedule>& schedule);

/// UsageError, of compile(), where the strategy asks devices for what a loss cannot do on them.
void require_done_on_devices(const Goals& goals, const Strategy& strategy);

/// sha256 of the first samples of epoch 0, at most 8: what the first checkpoints have.
std::string digest_of_first_samples(const data::Dataset& dataset, uint64_t seed);

}  // namespace tutti::detail
