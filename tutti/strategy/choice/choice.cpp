#include "tutti/strategy/choice/choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/strategy/choice/detail/features.h"

namespace tutti {
namespace {

// What was typed for it counts with any value, also with that which it has anyway.
const std::string* typed(const Asked& asked, const Feature& feature) {
  const auto& words = asked.strategy.typed;
  const auto found = std::ranges::find_if(
      words, [&](std::string_view one) { return one.substr(0, one.find(' ')) == feature.name; });
  return found == words.end() ? nullptr : &*found;
}

bool is_on(const Feature& feature, const Asked& asked) {
  return feature.on != nullptr && feature.on(asked);
}

bool is_broken(const Rule& rule, const Asked& asked) {
  if (rule.together == Together::never) return is_on(rule.one, asked) && is_on(rule.other, asked);
  return (typed(asked, rule.one) != nullptr || is_on(rule.one, asked)) && !is_on(rule.other, asked);
}

std::string words_of(const Feature& feature, const Asked& asked) {
  if (const std::string* const words = typed(asked, feature)) return *words;
  return feature.words != nullptr ? feature.words(asked) : std::string(feature.name);
}

std::string refusal(const Rule& rule, const Asked& asked) {
  const bool idle = rule.together == Together::needed;
  const std::string one = words_of(rule.one, asked);
  const auto said = [&](std::string_view text) {
    return fmt::format(fmt::runtime(text), fmt::arg("one", one),
                       fmt::arg("other", idle ? "" : words_of(rule.other, asked)),
                       fmt::arg("kind", asked.strategy.kind));
  };
  return fmt::format(
      "{}{}: {}; {}", one, idle ? " under " + asked.strategy.kind : "", said(rule.why),
      rule.instead.empty() ? fmt::format("leave {} out", rule.one.name) : said(rule.instead));
}

void require_together(const Asked& asked) {
  const auto all = rules();
  const auto broken =
      std::ranges::find_if(all, [&](const Rule& rule) { return is_broken(rule, asked); });
  if (broken != all.end()) throw UsageError(refusal(*broken, asked));
}

/// Why parameters of replicas on devices are updated on the CPU; "": they are not.
std::string why_on_cpu(const Asked& asked) {
  const StrategyOptions& options = asked.strategy;
  if (options.uses_servers()) return "parameter servers update them";
  if (asked.recipe.torch_optimizer) return "a torch optimizer was given";
  if (asked.recipe.own_reduction) return "a reduction was chosen";
  if (options.reduction != "fused")
    return fmt::format("reduction {} was chosen", options.reduction);
  if (options.kind == "central_storage" && asked.machine.several_devices)
    return "central_storage keeps the variables of several devices there";
  return asked.machine.not_there;
}

UpdaterKind updater_on_cpu(const Asked& asked) {
  const StrategyOptions& options = asked.strategy;
  if (options.uses_servers()) return UpdaterKind::served;
  if (options.is_compiled()) return UpdaterKind::compiled;
  if (options.local) return UpdaterKind::local;
  if (asked.recipe.torch_optimizer || asked.recipe.own_reduction || options.reduction != "fused")
    return UpdaterKind::replicated;
  const bool in_turn = options.kind == "one_device";  // one memory, of which nobody owns a slice
  return options.shard.empty() || in_turn ? UpdaterKind::shared : UpdaterKind::sharded;
}

}  // namespace

void require_together(const StrategyOptions& strategy, const RecipeFacts& recipe,
                      const FitFacts& fit, const Machine& machine) {
  require_together(Asked{strategy, recipe, fit, machine});
}

Choice choose(const StrategyOptions& strategy, const RecipeFacts& recipe, const FitFacts& fit,
              const Machine& machine) {
  check_options(strategy, machine.workers);
  const Asked asked{strategy, recipe, fit, machine};
  require_together(asked);
  if (!detail::features::uses_gpus(asked)) return {.updater = updater_on_cpu(asked)};
  const std::string why = why_on_cpu(asked);
  if (why.empty()) return {.updater = UpdaterKind::on_devices};
  return {.updater = updater_on_cpu(asked), .staged = true, .why = why};
}

}  // namespace tutti
