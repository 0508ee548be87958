/// "Did you mean ...": the nearest known word to one that is not known, for flags, names and keys.
/// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// The known word with the smallest edit distance to `word` (insert, delete, replace, swap of two
/// neighbours; case and the difference of '-' and '_' do not count). The first of several equally
/// near ones; empty when none is near: more than a third of the letters would have to change.
std::string nearest(std::string_view word, std::span<const std::string> known);

/// `unknown optimizer "adm"; did you mean "adam"? Known: sgd, adam, adamw`. Without a near word the
/// question is left out; without known words the list is.
std::string unknown_message(std::string_view what, std::string_view got,
                            std::span<const std::string> known);

}  // namespace tutti
