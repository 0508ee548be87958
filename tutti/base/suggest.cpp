#include "tutti/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "tutti/base/typed.h"

namespace tutti {
namespace {

std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Optimal string alignment distance: Levenshtein's with swaps of neighbours. Rows are prefixes of
// a, columns prefixes of b; only the last two rows are kept besides the current one.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replaced, previous[j] + 1, current[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

bool is_short_for(const std::string& word, const std::string& name) {
  const auto whole = parts_of(name, '_');
  auto next = whole.begin();
  for (const std::string_view part : parts_of(word, '_')) {
    next = std::find_if(next, whole.end(),
                        [&](std::string_view one) { return one.starts_with(part); });
    if (next == whole.end()) return false;
    ++next;
  }
  return true;
}

std::string shortest_of_which(const std::string& word, std::span<const std::string> known) {
  constexpr size_t kLeastLetters = 3;
  const std::string* best = nullptr;
  for (const std::string& candidate : known)
    if (word.size() >= kLeastLetters && is_short_for(word, folded(candidate)) &&
        (best == nullptr || candidate.size() < best->size()))
      best = &candidate;
  return best == nullptr ? std::string() : *best;
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> known) {
  // Text that long is no misspelt name; the bound keeps hostile input cheap.
  constexpr size_t kLongestName = 128;
  if (word.size() > kLongestName) return {};
  const std::string wanted = folded(word);
  if (const std::string whole = shortest_of_which(wanted, known); !whole.empty()) return whole;
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : known) {
    const size_t d = distance(wanted, folded(candidate));
    // One mistake is always allowed (short names: "sdg" for "sgd"), else one in three letters.
    const size_t allowed = std::max<size_t>(1, std::max(wanted.size(), candidate.size()) / 3);
    if (d <= allowed && (best == nullptr || d < best_distance)) {
      best = &candidate;
      best_distance = d;
    }
  }
  return best == nullptr || wanted.empty() ? std::string() : *best;
}

size_t edits_between(std::string_view one, std::string_view other) {
  return distance(folded(one), folded(other));
}

std::string unknown_message(std::string_view what, std::string_view got,
                            std::span<const std::string> known) {
  std::string text = fmt::format("unknown {} \"{}\"", what, got);
  const std::string alike = look_alike(got, known);
  const std::string near = alike.empty() ? nearest(got, known) : "";
  if (!alike.empty()) text += "; " + alike;
  if (!near.empty()) text += fmt::format("; did you mean \"{}\"?", near);
  if (known.empty()) return text;
  return text + fmt::format("{} Known: {}", near.empty() ? "." : "", fmt::join(known, ", "));
}

}  // namespace tutti
