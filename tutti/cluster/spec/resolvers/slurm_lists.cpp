// Slurm's short forms of host names and of counts.
//
//   list   = entry {"," entry}
//   entry  = {letters | "[" range {"," range} "]"}     several brackets: all combinations
//   range  = number | number "-" number                leading zeros are kept
//   counts = number ["(x" number ")"] {"," ...}

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {
namespace {

constexpr size_t kMostNames = 100'000;

/// Reads one value of a variable from left to right.
class Cursor {
 public:
  Cursor(std::string_view text, std::string_view variable) : text_(text), variable_(variable) {}

  bool done() const { return at_ == text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool take(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  void need(std::string_view expected) {
    if (!take(expected)) fail(fmt::format("expected \"{}\"", expected));
  }
  char take_any() { return text_[at_++]; }

  /// The digits of a number as they stand.
  std::string_view digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (begin == at_) fail("expected a number");
    return text_.substr(begin, at_ - begin);
  }
  int value_of_digits(std::string_view digits) const {
    const auto value = tutti::number_in<int>(digits);
    if (!value) fail(fmt::format("the number {} is too large", digits));
    return *value;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw UsageError(fmt::format("{}=\"{}\": {} at character {}", variable_, text_, why, at_ + 1));
  }

 private:
  std::string_view text_;
  std::string_view variable_;
  size_t at_ = 0;
};

// "[1-3,07]" to {"1", "2", "3", "07"}; the bracket is taken already.
std::vector<std::string> bracket(Cursor& cursor) {
  std::vector<std::string> all;
  do {
    const std::string_view low = cursor.digits();
    const int first = cursor.value_of_digits(low);
    const int last = cursor.take("-") ? cursor.value_of_digits(cursor.digits()) : first;
    if (last < first) cursor.fail(fmt::format("a range from {} to {}", first, last));
    if (static_cast<size_t>(last - first) >= kMostNames) cursor.fail("too many names");
    for (int64_t i = first; i <= last; ++i) all.push_back(fmt::format("{:0{}}", i, low.size()));
    if (all.size() > kMostNames) cursor.fail("too many names");
  } while (cursor.take(","));
  cursor.need("]");
  return all;
}

std::vector<std::string> entry(Cursor& cursor) {
  std::vector<std::string> names = {""};
  while (!cursor.done() && cursor.peek() != ',') {
    if (cursor.peek() == ']') cursor.fail("a bracket closes that none opened");
    std::vector<std::string> parts;
    if (cursor.take("[")) {
      parts = bracket(cursor);
    } else {
      parts = {std::string(1, cursor.take_any())};
    }
    if (names.size() * parts.size() > kMostNames) cursor.fail("too many names");
    std::vector<std::string> longer;
    longer.reserve(names.size() * parts.size());
    for (const std::string& name : names) {
      for (const std::string& part : parts) longer.push_back(name + part);
    }
    names = std::move(longer);
  }
  if (names.front().empty()) cursor.fail("expected a name");
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text, std::string_view variable) {
  Cursor cursor(text, variable);
  std::vector<std::string> all;
  do {
    for (std::string& name : entry(cursor)) all.push_back(std::move(name));
    if (all.size() > kMostNames) cursor.fail("too many names");
  } while (cursor.take(","));
  return all;
}

std::vector<int> expand_task_counts(std::string_view text, std::string_view variable) {
  Cursor cursor(text, variable);
  std::vector<int> all;
  do {
    const int count = cursor.value_of_digits(cursor.digits());
    int times = 1;
    if (cursor.take("(x")) {
      times = cursor.value_of_digits(cursor.digits());
      cursor.need(")");
    }
    if (times < 1) cursor.fail("expected at least one node");
    if (static_cast<size_t>(times) > kMostNames) cursor.fail("too many nodes");
    all.insert(all.end(), static_cast<size_t>(times), count);
    if (all.size() > kMostNames) cursor.fail("too many nodes");
  } while (cursor.take(","));
  if (!cursor.done()) cursor.fail("expected \",\"");
  return all;
}

}  // namespace tutti::detail
