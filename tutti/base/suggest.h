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
/// Before them comes what `word`, of three letters or more, is short for: the shortest whose parts
/// begin with the word's, in their order ("val_acc" for "val_kind_accuracy").
std::string nearest(std::string_view word, std::span<const std::string> known);

/// That distance.
size_t edits_between(std::string_view one, std::string_view other);

/// The first known word that looks as `word` does and is other bytes, and why: one has accents in
/// their letters (NFC), the other behind them (NFD). Empty where there is none.
std::string look_alike(std::string_view word, std::span<const std::string> known);

/// `unknown optimizer "adm"; did you mean "adam"? Known: sgd, adam, adamw`. Without a near word the
/// question is left out; without known words the list is. One that looks alike is named instead.
std::string unknown_message(std::string_view what, std::string_view got,
                            std::span<const std::string> known);

}  // namespace tutti
