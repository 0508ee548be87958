/// Checks of flag values: what is asked before one is taken. The answer to a wrong value has what
/// was got, what was expected, and the nearest known word. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::cli {

struct Check {
  /// What is wrong with a value, which it may change; "": nothing.
  std::function<std::string(std::string&)> answer{};
  std::vector<std::string> words{};  ///< that it takes, for completion; empty: others, too
  std::string described{};           ///< what --help says of it, behind what it calls the value

  std::string operator()(std::string& text) const { return answer(text); }
};

/// A whole number from `low` to `high`.
Check whole_number(int64_t low, int64_t high);

/// A finite number above 0, at most `high`.
Check positive_number(double high);

/// A finite number from `low` to `high`.
Check number_between(double low, double high);

/// A name of a file or folder: anything but "".
Check some_name();

/// Longer than anybody waits: a month, in seconds.
inline constexpr double kMostSeconds = 30.0 * 24 * 3600;

/// Rounded up.
Millis millis_of(double seconds);

/// One of `known`; `what` names their kind: "model". `later` are words that a later version will
/// take: the answer says so.
Check one_of(std::string what, std::vector<std::string> known, std::vector<std::string> later = {});

/// The two as the commands of `plan` have them, whose --help says them, too.
Check in_range(int64_t low, int64_t high);
Check member_of(const std::vector<std::string>& known);

/// Takes `word` as `now`, which is its name since this release, and says so on stderr: for one
/// release. What it takes is then asked `check`.
Check renamed_word(std::string flag, std::string word, std::string now, Check check);

/// What compression_from() reads: "none", "topk:0.01".
Check compression_word();

/// What parse_devices() reads, whatever devices there are: "cpu", "cuda:0x2,1".
Check device_words();

/// "8,1K,64M" to {8, 1024, 67108864}: sizes in bytes, with K, M, G for powers of 1024, each from 0
/// to 1 TiB. UsageError names `flag` and the part that was not understood.
std::vector<int64_t> parse_sizes(const std::string& flag, const std::string& text);

/// "1,2,4" to {1, 2, 4}, each from `low` to `high`. UsageError as parse_sizes.
std::vector<int64_t> parse_numbers(const std::string& flag, const std::string& text, int64_t low,
                                   int64_t high);

}  // namespace tutti::cli
