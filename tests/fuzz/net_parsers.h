/// Every parser of bytes that come from the network, or from files of a job that others may have
/// written, as a function of bytes. The first byte chooses. A parser may throw an Error; anything
/// else (a crash, another exception, a broken promise) is a find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tutti::test {

/// Runs the parser that the first byte chooses over the rest.
void parse_as_from_network(std::span<const uint8_t> input);

/// Names of the parsers, in the order of the first byte: for corpus files and messages.
std::span<const std::string_view> parser_names();

}  // namespace tutti::test
