/// What decides on the course of a training, in words and numbers that a checkpoint can keep and a
/// later training compare; not for users. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/train/model_state.h"

namespace tutti::detail {

/// Learning rate, a digest of what the rule does to fixed numbers in a few steps, clipping, groups.
/// "" for a torch optimizer.
std::string words_of(const OptimizerChoice& optimizer);

/// The rates of some steps up to a million; empty: there is no schedule.
std::vector<double> rates_of(const std::optional<RateSchedule>& schedule);

/// Names and weights of the losses, and the weights of classes.
std::string words_of(const Goals& goals, const std::map<int64_t, double>& class_weight);

/// sha256 of the first samples of epoch 0, at most 8.
std::string digest_of_samples(const data::Dataset& dataset, uint64_t seed);

}  // namespace tutti::detail
