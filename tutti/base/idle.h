/// Options that do nothing where they stand: a table of what each is for, and the refusal.
/// Thread rule: pure functions.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {

/// An option that only some choices have a use for.
template <class Choices>
struct NeededBy {
  std::string_view flag;               ///< "--keep-checkpoints"
  bool (*useful)(const Choices&);      ///< whether it does something beside these choices
  std::string_view why;                ///< "it is of checkpoints, which --out DIR keeps"
  bool (*given)(const Choices&) = {};  ///< by its value; null: only what was typed tells
};

/// UsageError for the first one of `table` that is given by its value or was typed, and is of no
/// use. `typed`: as "--engine nccl". What was typed counts with any value, also with that which it
/// has anyway. `where`: what is said behind it, " under mirrored".
template <class Choices>
void refuse_idle(const std::vector<std::string>& typed, const Choices& choices,
                 const std::vector<NeededBy<Choices>>& table, std::string_view where = "") {
  for (const NeededBy<Choices>& row : table) {
    const auto words = std::ranges::find_if(
        typed, [&](std::string_view one) { return one.substr(0, one.find(' ')) == row.flag; });
    const bool there = words != typed.end() || (row.given != nullptr && row.given(choices));
    if (there && !row.useful(choices))
      throw UsageError(fmt::format("{}{}: {}; leave {} out",
                                   words != typed.end() ? *words : std::string(row.flag), where,
                                   row.why, row.flag));
  }
}

}  // namespace tutti
