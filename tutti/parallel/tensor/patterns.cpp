#include "tutti/parallel/tensor/detail/patterns.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/optim/recipe.h"

namespace tutti::parallel::detail {
namespace {

/// The last parts of a dotted name, as many as `like` has.
std::string tail_of(const std::string& name, std::string_view like) {
  size_t begin = name.size() + 1;
  for (auto parts = std::ranges::count(like, '.') + 1; parts > 0 && begin > 0; --parts) {
    const size_t dot = begin < 2 ? std::string::npos : name.rfind('.', begin - 2);
    begin = dot == std::string::npos ? 0 : dot + 1;
  }
  return name.substr(begin);
}

}  // namespace

void require_match(std::string_view what, const std::string& pattern,
                   const std::vector<std::string>& names) {
  if (std::ranges::any_of(names, [&](const auto& name) { return optim::fits(pattern, name); }))
    return;
  const size_t stars = pattern.starts_with("*.") ? 2 : 0;
  const std::string words = pattern.substr(stars);
  std::vector<std::string> known;
  for (const std::string& name : names) known.push_back(stars > 0 ? tail_of(name, words) : name);
  const std::string near = nearest(words, known);
  throw UsageError(fmt::format(
      "{}: \"{}\" matches no layer{}", what, pattern,
      near.empty() ? "; summary() has their names"
                   : fmt::format("; did you mean \"{}{}\"?", pattern.substr(0, stars), near)));
}

}  // namespace tutti::parallel::detail
