/// What decides on the course of a training, in words and numbers, for workers and checkpoints to
/// compare; not for users. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/agreed_lines.h"
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

/// sha256 of the first samples of epoch 0, at most 8: what the first checkpoints have.
std::string digest_of_first_samples(const data::Dataset& dataset, uint64_t seed);

/// How many samples the digest looks at: all of a small dataset, else as many as have 1 MiB, at
/// least 64 and at most 1024. Of a generator, which computes all before the one that is asked for,
/// the first 8.
int64_t samples_of_digest(const data::Dataset& dataset);

/// sha256 of those samples of epoch 0, as a step gets them, at equal distances from the first to
/// the last. One that is damaged counts as that: the step that comes to it says so.
std::string digest_of(const data::Dataset& dataset, uint64_t seed);

/// A line each: samples, columns and batches; names of columns and classes.
void add_shape(AgreedLines& lines, std::string_view what, const data::Dataset& dataset);
/// One line with the digest.
void add_digest(AgreedLines& lines, std::string_view what, const data::Dataset& dataset,
                uint64_t seed);

}  // namespace tutti::detail
