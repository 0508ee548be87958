#include "tutti/data/sources/detail/census.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace tutti::data::detail {
namespace {

std::string counted(const std::string& column, int64_t samples) {
  return fmt::format("{} ({})", column, samples);
}

int64_t all_of(const std::map<std::string, int64_t>& kinds) {
  return std::accumulate(kinds.begin(), kinds.end(), int64_t{0},
                         [](int64_t sum, const auto& kind) { return sum + kind.second; });
}

const std::string& commonest(const std::map<std::string, int64_t>& kinds) {
  return std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.second; })->first;
}

}  // namespace

void Census::add(int64_t row, const std::vector<Value>& values) {
  Kinds kinds;
  for (const Value& value : values) kinds.emplace_back(value.column, value.kind);
  std::ranges::sort(kinds);
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] =
      all_kinds_.emplace(std::move(kinds), static_cast<int32_t>(all_kinds_.size()));
  kinds_of_row_[static_cast<size_t>(row)] = place->second;
  for (const Value& value : values)
    if (value.bytes_alone) ++bytes_alone_[value.column];
}

int64_t Census::rows_known() const {
  return std::ssize(kinds_of_row_) - std::ranges::count(kinds_of_row_, -1);
}

std::map<std::string, std::map<std::string, int64_t>> Census::counts() const {
  std::vector<int64_t> rows(all_kinds_.size());
  for (const int32_t kinds : kinds_of_row_)
    if (kinds >= 0) ++rows[static_cast<size_t>(kinds)];
  std::map<std::string, std::map<std::string, int64_t>> counts;
  for (const auto& [kinds, place] : all_kinds_)
    for (const auto& [column, kind] : kinds)
      counts[column][kind] += rows[static_cast<size_t>(place)];
  return counts;
}

void Census::for_each_odd(const std::function<void(int64_t, std::string)>& tell) const {
  std::vector<std::vector<std::string>> odd(all_kinds_.size());
  for (const auto& [column, by_kind] : counts()) {
    if (2 * all_of(by_kind) <= rows_known()) continue;
    std::map<std::string, int64_t> told = by_kind;
    told.erase("");  // of what is damaged, or bytes
    for (const auto& [kinds, place] : all_kinds_) {
      const auto own =
          std::ranges::find(kinds, column, [](const auto& pair) { return pair.first; });
      std::vector<std::string> there;
      for (const auto& pair : kinds) there.push_back(pair.first);
      if (own == kinds.end())
        odd[static_cast<size_t>(place)].push_back(
            fmt::format("there is no \"{}\", which most samples have; there are: {}", column,
                        fmt::join(there, ", ")));
      else if (!own->second.empty() && own->second != commonest(told))
        odd[static_cast<size_t>(place)].push_back(fmt::format(
            "\"{}\" is {}, expected {} as in most samples", column, own->second, commonest(told)));
    }
  }
  for (size_t row = 0; row < kinds_of_row_.size(); ++row)
    if (kinds_of_row_[row] >= 0)
      for (const std::string& what : odd[static_cast<size_t>(kinds_of_row_[row])])
        tell(static_cast<int64_t>(row), what);
}

std::string Census::bytes_alone() const {
  std::vector<std::string> words;
  for (const auto& [column, samples] : bytes_alone_) words.push_back(counted(column, samples));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string Census::rare() const {
  std::vector<std::string> words;
  for (const auto& [column, by_kind] : counts())
    if (2 * all_of(by_kind) <= rows_known()) words.push_back(counted(column, all_of(by_kind)));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace tutti::data::detail
