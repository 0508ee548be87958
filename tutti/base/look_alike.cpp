// Names that look the same and are other bytes: Unicode lets an accent be part of its letter (NFC,
// as Linux and Windows write it) or stand behind it (NFD, as files of macOS have it).
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tutti/base/suggest.h"
#include "tutti/base/utf8.h"

namespace tutti {
namespace {

/// Letters of Latin-1 and Latin Extended-A, each in front of the letter that is under the mark.
struct Accent {
  char32_t mark;
  std::u32string_view letters;
};
constexpr Accent kAccents[] = {
    {0x300, U"ÀAÈEÌIÒOÙUàaèeìiòoùu"},
    {0x301, U"ÁAÉEÍIÓOÚUÝYáaéeíióoúuýyĆCćcĹLĺlŃNńnŔRŕrŚSśsŹZźz"},
    {0x302, U"ÂAÊEÎIÔOÛUâaêeîiôoûuĈCĉcĜGĝgĤHĥhĴJĵjŜSŝsŴWŵwŶYŷy"},
    {0x303, U"ÃAÑNÕOãañnõoĨIĩiŨUũu"},
    {0x304, U"ĀAāaĒEēeĪIīiŌOōoŪUūu"},
    {0x306, U"ĂAăaĔEĕeĞGğgĬIĭiŎOŏoŬUŭu"},
    {0x307, U"ĊCċcĖEėeĠGġgİIŻZżz"},
    {0x308, U"ÄAËEÏIÖOÜUäaëeïiöoüuÿyŸY"},
    {0x30A, U"ÅAåaŮUůu"},
    {0x30B, U"ŐOőoŰUűu"},
    {0x30C, U"ČCčcĎDďdĚEěeĽLľlŇNňnŘRřrŠSšsŤTťtŽZžz"},
    {0x327, U"ÇCçcĢGģgĶKķkĻLļlŅNņnŖRŗrŞSşsŢTţt"},
    {0x328, U"ĄAąaĘEęeĮIįiŲUųu"},
};

void append_parts(char32_t letter, std::u32string& to) {
  for (const auto& [mark, letters] : kAccents)
    for (size_t i = 0; i < letters.size(); i += 2)
      if (letters[i] == letter) {
        to += letters[i + 1];
        to += mark;
        return;
      }
  to += letter;
}

/// With each accent behind its letter; a byte that is no UTF-8 is itself, beyond all characters.
std::u32string decomposed(std::string_view text) {
  constexpr char32_t kBeyond = 0x110000;
  std::u32string out;
  while (!text.empty()) {
    const auto character = first_character(text);
    if (character)
      append_parts(character->value, out);
    else
      out += static_cast<char32_t>(kBeyond + static_cast<uint8_t>(text[0]));
    text.remove_prefix(character ? character->bytes : 1);
  }
  return out;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

std::string look_alike(std::string_view word, std::span<const std::string> known) {
  constexpr size_t kLongestName = 128;
  if (word.size() > kLongestName || is_ascii(word)) return {};
  const std::u32string parts = decomposed(word);
  const auto found = std::ranges::find_if(known, [&](const std::string& one) {
    return one != word && !is_ascii(one) && decomposed(one) == parts;
  });
  if (found == known.end()) return {};
  // Each character of NFD is as many bytes or more.
  const bool behind = word.size() > found->size();
  return fmt::format(
      "\"{}\" looks the same and is other bytes: accents stand {} there, {} here; write both alike",
      *found, behind ? "in their letters (NFC)" : "behind their letters (NFD)",
      behind ? "behind them (NFD)" : "in them (NFC)");
}

}  // namespace tutti
