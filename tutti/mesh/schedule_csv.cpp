#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/mesh/schedule.h"

namespace tutti::mesh {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Cuts off what comes before the next `delimiter`.
std::string_view cut(std::string_view& rest, char delimiter) {
  const size_t end = std::min(rest.find(delimiter), rest.size());
  const std::string_view piece = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return piece;
}

std::optional<int> number_of(std::string_view digits) {
  const auto number = number_in<int>(digits);
  return number && *number >= 0 ? number : std::nullopt;
}

std::optional<Action> action_of(std::string_view field) {
  constexpr std::string_view kLetters = "FBW";
  const size_t kind = field.empty() ? std::string_view::npos : kLetters.find(field[0]);
  if (kind == std::string_view::npos) return std::nullopt;
  field.remove_prefix(1);
  const bool chunked = field.find('.') != std::string_view::npos;
  const auto chunk = chunked ? number_of(cut(field, '.')) : 0;
  const auto microbatch = number_of(field);
  if (!chunk || !microbatch) return std::nullopt;
  return Action{static_cast<Kind>(kind), *chunk, *microbatch};
}

// What comments may say of the whole.
void read_comment(std::string_view comment, Schedule& schedule) {
  comment = trimmed(comment.substr(1));
  if (comment == "split") schedule.split = true;
  if (comment == "placement: vee") schedule.placement = Placement::vee;
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string text = fmt::format("# {}\n", schedule.name);
  if (schedule.placement == Placement::vee) text += "# placement: vee\n";
  if (schedule.split) text += "# split\n";
  for (const auto& actions : schedule.actions) {
    std::string line;
    for (const Action& action : actions) {
      line += line.empty() ? "" : ",";
      line += letter_of(action.kind);
      if (schedule.chunks > 1) line += fmt::format("{}.", action.chunk);
      line += fmt::format("{}", action.microbatch);
    }
    text += line + "\n";
  }
  return text;
}

Schedule from_csv(std::string_view text, const std::string& name) {
  Schedule schedule{.name = name};
  schedule.microbatches = 0;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = trimmed(cut(text, '\n'));
    if (line.empty()) continue;
    if (line[0] == '#') {
      read_comment(line, schedule);
      continue;
    }
    auto& actions = schedule.actions.emplace_back();
    for (int field_number = 1; !line.empty(); ++field_number) {
      const std::string_view field = trimmed(cut(line, ','));
      const auto action = action_of(field);
      if (!action)
        throw DataError(fmt::format(
            "{}, line {}, field {}: \"{}\"; expected F, B or W with a microbatch (F3), or with "
            "chunk and microbatch (F1.3)",
            name, number, field_number, field));
      actions.push_back(*action);
      schedule.chunks = std::max(schedule.chunks, action->chunk + 1);
      schedule.microbatches = std::max(schedule.microbatches, action->microbatch + 1);
    }
  }
  if (schedule.actions.empty())
    throw DataError(fmt::format("{}: no lines of actions; expected one a rank", name));
  return schedule;
}

}  // namespace tutti::mesh
