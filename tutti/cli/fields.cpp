#include "tutti/cli/fields.h"

#include <algorithm>
#include <set>

#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"

namespace tutti::cli {
namespace {

// Each gives what was expected, or "" once it has set the target.
std::string set(std::string_view text, bool* target) {
  *target = text == "true";
  return text == "true" || text == "false" ? "" : "true or false";
}

std::string set(std::string_view text, int64_t* target) {
  const auto number = number_in<int64_t>(text);
  *target = number.value_or(0);
  return number ? "" : "a whole number";
}

std::string set(std::string_view text, double* target) {
  const auto number = number_in<double>(text);
  *target = number.value_or(0);
  return number ? "" : "a finite number";
}

std::string set(std::string_view text, std::optional<double>* target) {
  return set(text, &target->emplace());
}

std::string set(std::string_view text, std::string* target) {
  *target = text;
  return text.empty() ? "a name" : "";
}

std::string set(std::string_view text, std::filesystem::path* target) {
  *target = text;
  return text.empty() ? "a path" : "";
}

std::string set(std::string_view text, Better* target) {
  *target = text == "lower" ? Better::lower : text == "higher" ? Better::higher : Better::by_name;
  return text == "by_name" || *target != Better::by_name ? "" : "by_name, lower or higher";
}

template <class Number>
std::string set(std::string_view text, std::vector<Number>* target) {
  target->clear();
  for (const std::string_view part : parts_of(text, '/'))
    if (const std::string expected = set(part, &target->emplace_back()); !expected.empty())
      return expected + " or several, as in 1/2/4";
  return "";
}

}  // namespace

void read_fields(std::string_view text, const std::vector<Field>& fields) {
  std::vector<std::string> known;
  for (const auto& [name, target] : fields) known.emplace_back(name);
  std::set<std::string_view> given;
  for (const std::string_view part : parts_of(text, ',')) {
    const size_t sign = part.find('=');
    const std::string_view name = part.substr(0, sign);
    const auto field = std::ranges::find(fields, name, &Field::first);
    if (field == fields.end()) throw UsageError(unknown_message("field", name, known));
    if (sign == std::string_view::npos)
      throw UsageError(fmt::format("got \"{}\"; expected {}=VALUE", part, name));
    if (!given.insert(name).second)
      throw UsageError(fmt::format("{} is given twice in \"{}\"", name, text));
    const std::string_view value = part.substr(sign + 1);
    const std::string expected =
        std::visit([&](auto* target) { return set(value, target); }, field->second);
    if (!expected.empty())
      throw UsageError(fmt::format("{} = \"{}\"; expected {}", name, value, expected));
  }
}

}  // namespace tutti::cli
