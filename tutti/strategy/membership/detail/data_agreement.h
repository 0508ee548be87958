/// What workers compare of the data that each of them reads; not for users.
/// docs/design/agreement.md. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/base/agreed_lines.h"
#include "tutti/data/dataset.h"

namespace tutti::detail {

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
