#include "tutti/cli/train/optimizer_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/fields.h"
#include "tutti/cli/train/whole_flags.h"

namespace tutti::cli {
namespace {

// --learning-rate and --weight-decay are flags of their own.
void read_rule_options(const OptimizerFlags& flags, optim::Rule::Options& options) {
  if (flags.options.empty()) return;
  std::visit(
      [&](auto& chosen) {
        std::vector<Field> fields;
        optim::visit_fields(chosen, [&](std::string_view name, auto& field) {
          if (name != "learning_rate" && name != "weight_decay") fields.emplace_back(name, &field);
        });
        read_fields(flags.options, fields);
      },
      options);
}

void set_weight_decay(const OptimizerFlags& flags, optim::Rule::Options& options) {
  if (!flags.weight_decay) return;
  std::visit(
      [&](auto& chosen) {
        if constexpr (requires { chosen.weight_decay; })
          chosen.weight_decay = *flags.weight_decay;
        else
          throw UsageError(fmt::format("--weight-decay {}: optimizer {} has none",
                                       *flags.weight_decay, flags.name));
      },
      options);
}

optim::Group group_from(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == 0 || colon == std::string::npos)
    throw UsageError(fmt::format(
        "got \"{}\"; expected PATTERN:FIELD=VALUE,..., as *.bias:weight_decay=0", text));
  optim::Group group{.pattern = text.substr(0, colon)};
  read_fields(std::string_view(text).substr(colon + 1),
              {{"learning_rate_factor", &group.learning_rate_factor},
               {"weight_decay", &group.weight_decay}});
  return group;
}

void add_clip_flag(Command& command, const char* name, double& limit, const char* help) {
  command.add(name, "LIMIT", &limit, positive_number(1e38), help);
}

}  // namespace

void add_optimizer_flags(Command& command, OptimizerFlags& flags) {
  command.group = "Optimizer";
  std::vector<std::string> names = optim::rule_names();
  std::ranges::copy(optim::whole_rule_names(), std::back_inserter(names));
  command.add("--optimizer", "NAME", &flags.name, one_of("optimizer", names),
              fmt::format("{}", fmt::join(names, ", ")));
  command
      .add("--learning-rate", "R", &flags.learning_rate, positive_number(1e38),
           "Default: the optimizer's own (adam 1e-3)")
      .also = {"--lr"};
  command.add("--weight-decay", "W", &flags.weight_decay, number_between(0, 1e38),
              "Default: the optimizer's own (adamw 0.01, else 0)");
  command.add("--optimizer-options", "FIELD=VALUE,...", &flags.options, some_name(),
              "Its other fields, as momentum=0.9,nesterov=true");
  add_clip_flag(command, "--clip-value", flags.clip.value, "Clips every element of the gradients");
  add_clip_flag(command, "--clip-norm", flags.clip.norm, "Clips the length of each gradient");
  add_clip_flag(command, "--clip-global-norm", flags.clip.global_norm,
                "Clips the length of all gradients together");
  command
      .add("--parameter-group", "PATTERN:FIELD=VALUE,...", &flags.groups,
           "Parameters that are treated apart, as *.bias:weight_decay=0; also "
           "learning_rate_factor. Again for more groups")
      .several = Several::again;
}

optim::Recipe recipe_from(const OptimizerFlags& flags) {
  if (whole_rule_from(flags))
    throw UsageError(fmt::format(
        "--optimizer {}: it needs whole parameters, and steps are measured here of elementwise "
        "rules; take one of {}",
        flags.name, fmt::join(optim::rule_names(), ", ")));
  optim::Rule::Options options =
      optim::rule_by_name(flags.name, flags.learning_rate.value_or(0)).options();
  set_weight_decay(flags, options);
  const optim::Rule rule = said_of("--optimizer-options", [&] {
    read_rule_options(flags, options);
    return optim::Rule(options);
  });
  said_of("--clip-value, --clip-norm, --clip-global-norm",
          [&] { return optim::Recipe(rule, flags.clip); });
  return said_of("--parameter-group", [&] {
    std::vector<optim::Group> groups;
    for (const std::string& text : flags.groups) groups.push_back(group_from(text));
    return optim::Recipe(rule, flags.clip, std::move(groups));
  });
}

}  // namespace tutti::cli
