#include "tutti/cluster/join/rank_order.h"

#include <algorithm>
#include <climits>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

namespace tutti {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view take_digits(std::string_view& text) {
  size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  const std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
}

// Names as people count: runs of digits are numbers.
bool comes_before(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view left = take_digits(a);
      const std::string_view right = take_digits(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // "n01" and "n1"
}

int or_last(int number) { return number < 0 ? INT_MAX : number; }

}  // namespace

std::vector<int> rank_order(std::span<const RosterEntry> roster) {
  std::map<std::string, int> lowest;  // by host, the launcher's number
  for (const RosterEntry& entry : roster) {
    const auto [at, is_new] = lowest.emplace(entry.host, or_last(entry.worker));
    if (!is_new) at->second = std::min(at->second, or_last(entry.worker));
  }
  std::vector<int> order(roster.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int left, int right) {
    const RosterEntry& a = roster[static_cast<size_t>(left)];
    const RosterEntry& b = roster[static_cast<size_t>(right)];
    if (a.host != b.host) {
      const int first_a = lowest.at(a.host);
      const int first_b = lowest.at(b.host);
      return first_a != first_b ? first_a < first_b : comes_before(a.host, b.host);
    }
    return std::tuple(or_last(a.core), or_last(a.worker), left) <
           std::tuple(or_last(b.core), or_last(b.worker), right);
  });
  return order;
}

}  // namespace tutti
