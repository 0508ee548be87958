/// Checks of flag values: what CLI11 asks before it takes one. The answer to a wrong value has what
/// was got, what was expected, and the nearest known word. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tutti/base/deadline.h"

namespace tutti::cli {

/// A whole number from `low` to `high`.
CLI::Validator whole_number(int64_t low, int64_t high);

/// A finite number above 0, at most `high`.
CLI::Validator positive_number(double high);

/// A finite number from `low` to `high`.
CLI::Validator number_between(double low, double high);

/// A name of a file or folder: anything but "".
CLI::Validator some_name();

/// Longer than anybody waits: a month, in seconds.
inline constexpr double kMostSeconds = 30.0 * 24 * 3600;

/// Rounded up.
Millis millis_of(double seconds);

/// One of `known`; `what` names their kind: "model". `later` are words that a later version will
/// take: the answer says so.
CLI::Validator one_of(std::string what, std::vector<std::string> known,
                      std::vector<std::string> later = {});

/// Takes `word` as `now`, which is its name since this release, and says so on stderr: for one
/// release. Goes before other checks, by CLI::Option::transform().
CLI::Validator renamed_word(std::string flag, std::string word, std::string now);

/// What compression_from() reads: "none", "topk:0.01".
CLI::Validator compression_word();

/// What parse_devices() reads, whatever devices there are: "cpu", "cuda:0x2,1".
CLI::Validator device_words();

/// "8,1K,64M" to {8, 1024, 67108864}: sizes in bytes, with K, M, G for powers of 1024, each from 0
/// to 1 TiB. UsageError names `flag` and the part that was not understood.
std::vector<int64_t> parse_sizes(const std::string& flag, const std::string& text);

/// "1,2,4" to {1, 2, 4}, each from `low` to `high`. UsageError as parse_sizes.
std::vector<int64_t> parse_numbers(const std::string& flag, const std::string& text, int64_t low,
                                   int64_t high);

}  // namespace tutti::cli
