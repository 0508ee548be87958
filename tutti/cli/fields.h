/// Fields of options as one flag takes them: "patience=3,monitor=val_accuracy".
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/train/metrics/better.h"

namespace tutti::cli {

/// Where a value goes; lists are written 100/200/400.
using FieldTarget =
    std::variant<bool*, int64_t*, double*, std::optional<double>*, std::string*,
                 std::filesystem::path*, Better*, std::vector<int64_t>*, std::vector<double>*>;
using Field = std::pair<std::string_view, FieldTarget>;

/// Sets the fields that `text` names, each once. UsageError for a value of another kind, and for a
/// name that is not among them, with the nearest one.
void read_fields(std::string_view text, const std::vector<Field>& fields);

/// What `make` gives; a UsageError of it then begins with `flag`.
template <class Make>
auto said_of(const std::string& flag, Make make) {
  try {
    return make();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace tutti::cli
