#include "tutti/data/transforms/detail/spec.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"

namespace tutti::data::detail {
namespace {

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// Takes what stands before `separator` off `text`.
std::string_view take_until(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return trimmed(taken);
}

}  // namespace

void SpecWriter::begin_part() {
  if (!empty_) text_ += ", ";
  empty_ = false;
}

SpecWriter& SpecWriter::number(double value) {
  begin_part();
  text_ += fmt::format("{}", value);
  return *this;
}

SpecWriter& SpecWriter::option(std::string_view key, const std::vector<double>& values,
                               const std::vector<double>& defaults) {
  if (values == defaults) return *this;
  begin_part();
  text_ += fmt::format("{} {}", key, fmt::join(values, " "));
  return *this;
}

SpecWriter& SpecWriter::flag(std::string_view key, bool set) {
  if (!set) return *this;
  begin_part();
  text_ += key;
  return *this;
}

SpecReader::SpecReader(std::string_view text) : text_(text) {
  const std::string_view whole = trimmed(text);
  const size_t open = whole.find('(');
  name_ = trimmed(whole.substr(0, open));
  if (open == std::string_view::npos) return;  // "to_tensor" is to_tensor()
  if (!whole.ends_with(')')) fail("the bracket is not closed");
  std::string_view rest = trimmed(whole.substr(open + 1, whole.size() - open - 2));
  while (!rest.empty()) parts_.push_back(parse_part(take_until(rest, ',')));
}

SpecReader::Part SpecReader::parse_part(std::string_view text) const {
  Part part;
  if (text.empty()) fail("nothing stands between two commas");
  if (std::isalpha(static_cast<unsigned char>(text[0])) != 0) part.key = take_until(text, ' ');
  while (!text.empty()) {
    const std::string_view word = take_until(text, ' ');
    if (word.empty() || word == "to") continue;
    const auto value = number_in<double>(word);
    if (!value) fail(fmt::format("got \"{}\", expected a number", word));
    part.values.push_back(*value);
  }
  if (part.key.empty() && part.values.size() != 1) fail("expected a comma between numbers");
  return part;
}

void SpecReader::fail(const std::string& why) const {
  throw UsageError(fmt::format("transform \"{}\": {}", text_, why));
}

int64_t SpecReader::numbers() const {
  return std::ranges::count_if(parts_, [](const Part& part) { return part.key.empty(); });
}

double SpecReader::number(int64_t i) {
  for (const Part& part : parts_)
    if (part.key.empty() && i-- == 0) return part.values[0];
  fail("a number is missing");
}

int64_t SpecReader::whole(int64_t i) {
  const double value = number(i);
  if (value != std::floor(value) || std::abs(value) > 1e15)
    fail(fmt::format("got {}, expected a whole number", value));
  return static_cast<int64_t>(value);
}

const SpecReader::Part* SpecReader::find(std::string_view key) {
  known_.emplace_back(key);
  const auto part = std::ranges::find(parts_, key, &Part::key);
  return part == parts_.end() ? nullptr : &*part;
}

std::vector<double> SpecReader::option(std::string_view key, const std::vector<double>& defaults) {
  const Part* part = find(key);
  return part == nullptr ? defaults : part->values;
}

double SpecReader::option(std::string_view key, double by_default) {
  const std::vector<double> values = option(key, std::vector{by_default});
  if (values.size() != 1) fail(fmt::format("{}: got {} numbers, expected one", key, values.size()));
  return values[0];
}

int64_t SpecReader::whole(std::string_view key, int64_t by_default) {
  const double value = option(key, static_cast<double>(by_default));
  if (value != std::floor(value) || std::abs(value) > 1e15)
    fail(fmt::format("{}: got {}, expected a whole number", key, value));
  return static_cast<int64_t>(value);
}

bool SpecReader::flag(std::string_view key) {
  const Part* part = find(key);
  if (part != nullptr && !part->values.empty())
    fail(fmt::format("{}: expected no number, it is there or not", key));
  return part != nullptr;
}

void SpecReader::finish(int64_t least, int64_t most) const {
  for (const Part& part : parts_)
    if (!part.key.empty() && std::ranges::find(known_, part.key) == known_.end())
      fail(unknown_message("option", part.key, known_));
  if (numbers() < least || numbers() > most)
    fail(fmt::format(
        "got {} numbers in front, expected {}", numbers(),
        least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most)));
}

}  // namespace tutti::data::detail
