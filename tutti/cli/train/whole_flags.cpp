#include "tutti/cli/train/whole_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cli/fields.h"

namespace tutti::cli {
namespace {

void refuse_what_is_elementwise(const OptimizerFlags& flags) {
  const char* flag = nullptr;
  if (flags.clip.value > 0) flag = "--clip-value";
  if (flags.clip.norm > 0) flag = "--clip-norm";
  if (flags.clip.global_norm > 0) flag = "--clip-global-norm";
  if (!flags.groups.empty()) flag = "--parameter-group";
  if (flag != nullptr)
    throw UsageError(fmt::format(
        "{}: optimizer {} has no clipping and no groups; leave it out, or take --optimizer adamw",
        flag, flags.name));
}

template <class Options>
void read_whole_options(const OptimizerFlags& flags, Options& options) {
  std::vector<Field> fields;
  visit_whole_fields(options, [&](std::string_view name, auto& field) {
    if (name != "learning_rate" && name != "weight_decay") fields.emplace_back(name, &field);
  });
  std::string others;
  if constexpr (requires { options.others; }) fields.emplace_back("others", &others);
  if (!flags.options.empty()) read_fields(flags.options, fields);
  if constexpr (requires { options.others; }) {
    if (others.empty()) return;
    options.others.clear();
    for (const std::string_view pattern : parts_of(others, '/'))
      options.others.emplace_back(pattern);
  }
}

}  // namespace

std::optional<optim::WholeRule> whole_rule_from(const OptimizerFlags& flags) {
  const std::vector<std::string>& names = optim::whole_rule_names();
  if (std::ranges::find(names, flags.name) == names.end()) return std::nullopt;
  refuse_what_is_elementwise(flags);
  optim::WholeRule::Options options = optim::whole_rule_by_name(flags.name).options();
  std::visit(
      [&](auto& chosen) {
        if (flags.learning_rate) chosen.learning_rate = *flags.learning_rate;
        if (flags.weight_decay) chosen.weight_decay = *flags.weight_decay;
      },
      options);
  return said_of("--optimizer-options", [&] {
    std::visit([&](auto& chosen) { read_whole_options(flags, chosen); }, options);
    return optim::WholeRule(options);
  });
}

RecipeFacts optimizer_facts(const OptimizerFlags& flags) {
  if (const auto whole = whole_rule_from(flags))
    return {.torch_optimizer = true, .more_than_a_rule = whole->more_than_a_rule()};
  const optim::Recipe recipe = recipe_from(flags);
  return {.more_than_a_rule = recipe.more_than_a_rule(),
          .clips_or_groups = recipe.clips_or_groups()};
}

double learning_rate_of(const OptimizerFlags& flags) {
  const auto whole = whole_rule_from(flags);
  return whole ? whole->learning_rate() : recipe_from(flags).rule().learning_rate();
}

void require_rate(const OptimizerFlags& flags, double learning_rate) {
  if (whole_rule_from(flags))
    optim::require_learning_rate(learning_rate);
  else
    recipe_from(flags).rule().next({}, learning_rate);
}

}  // namespace tutti::cli
