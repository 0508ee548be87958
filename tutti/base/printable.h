/// Text in which others may have a part (names of files, words from the network), made fit to be
/// printed: where errors and log lines leave the process, not where they are made.
/// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti {

/// Of a message: a screen, and paths of any length are longer.
inline constexpr size_t kMostMessageBytes = 4096;

/// `text` without what a terminal would obey, and no longer than `most_bytes` (at least 128).
///
/// Line breaks and tabs stay; other control characters and bytes that are no UTF-8 become \x1b. A
/// line after the first is set in by two spaces where it is not: a line break in a name cannot
/// begin what looks like a message of ours. Of what is longer the middle is left out, and how much
/// that was stands in its place. Done twice, it changes nothing.
std::string printable(std::string_view text, size_t most_bytes = kMostMessageBytes);

}  // namespace tutti
