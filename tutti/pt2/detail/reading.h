/// What the readers of a program share: members of JSON by name, and errors that say where.
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/pt2/program.h"

namespace tutti::pt2::detail {

template <class... Args>
[[noreturn]] void fail(std::string_view place, fmt::format_string<Args...> format, Args&&... args) {
  throw DataError(fmt::format("{}: {}", place, fmt::format(format, std::forward<Args>(args)...)));
}

/// `read()`; what it throws as JsonError as a DataError of `place`.
template <class Read>
auto at_place(const std::string& place, Read read) {
  try {
    return read();
  } catch (const JsonError& error) {
    fail(place, "not as the format has it: {}", error.what());
  }
}

/// A union of the format: an object with one member, which says what it is.
struct Union {
  const std::string& kind;
  const Json& value;
};
Union union_of(const Json& json);

/// JsonError for a fraction, and a number that int64 has not.
int64_t integer_of(const Json& json);
/// Infinities and NaN are texts there.
double real_of(const Json& json);
bool boolean_of(const Json& json);

/// JsonError for an element type, layout or memory format that is not read.
Element element_of(const Json& json);
MemoryFormat memory_format_of(const Json& json);
void require_strided(const Json& json);
std::string device_of(const Json& json);

Size size_of_symbols(const Json& json);
/// JsonError for more than `dimensions`, as many strides as sizes, and what element_of() has not.
TensorMeta meta_of(const Json& json, size_t dimensions);

/// Whether every part of a name with dots can be that of a module, parameter or buffer.
bool is_path_of_modules(std::string_view name);

}  // namespace tutti::pt2::detail
