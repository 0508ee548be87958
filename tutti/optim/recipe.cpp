#include "tutti/optim/recipe.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti::optim {
namespace {

// Written so that NaN fails it.
void require_limit(const char* field, double value) {
  if (value >= 0 && fits_float32(value)) return;
  throw UsageError(
      fmt::format("clip: {} = {} is out of range; expected a finite number > 0 that float32 keeps, "
                  "or 0 for none",
                  field, value));
}

void validate(const Clip& clip) {
  require_limit("value", clip.value);
  require_limit("norm", clip.norm);
  require_limit("global_norm", clip.global_norm);
  if ((clip.value > 0) + (clip.norm > 0) + (clip.global_norm > 0) > 1)
    throw UsageError(fmt::format("clip: value = {}, norm = {}, global_norm = {}: give one of them",
                                 clip.value, clip.norm, clip.global_norm));
}

Rule with_decay(const Rule& rule, double weight_decay, const std::string& pattern) {
  Rule::Options options = rule.options();
  std::visit(
      [&](auto& chosen) {
        if constexpr (requires { chosen.weight_decay; })
          chosen.weight_decay = weight_decay;
        else
          throw UsageError(fmt::format("group \"{}\": weight_decay = {}: optimizer {} has none",
                                       pattern, weight_decay, rule.name()));
      },
      options);
  return Rule(options);
}

}  // namespace

Recipe::Recipe(Rule rule, Clip clip, std::vector<Group> groups)
    : rule_(rule), clip_(clip), groups_(std::move(groups)) {
  validate(clip_);
  for (const Group& group : groups_) {
    if (!(group.learning_rate_factor >= 0 && fits_float32(group.learning_rate_factor)))
      throw UsageError(
          fmt::format("group \"{}\": learning_rate_factor = {} is out of range; expected 0, or {}",
                      group.pattern, group.learning_rate_factor, kFloat32Range));
    if (group.learning_rate_factor == 0 && rule_.name() == "ftrl")
      throw UsageError(fmt::format(
          "group \"{}\": learning_rate_factor = 0: optimizer ftrl needs a learning rate above 0",
          group.pattern));
    if (group.weight_decay) with_decay(rule_, *group.weight_decay, group.pattern);
  }
}

const Group* Recipe::group_of(std::string_view name) const {
  for (const Group& group : groups_)
    if (fits(group.pattern, name)) return &group;
  return nullptr;
}

Rule Recipe::rule_for(std::string_view name) const {
  const Group* const group = group_of(name);
  if (group == nullptr || !group->weight_decay) return rule_;
  return with_decay(rule_, *group->weight_decay, group->pattern);
}

std::string Recipe::more_than_a_rule() const {
  if (rule_.measures()) return fmt::format("optimizer {}, which needs norms", rule_.name());
  if (clip_.value > 0 || clip_.norm > 0 || clip_.global_norm > 0) return "clipping of gradients";
  return groups_.empty() ? "" : "parameter groups";
}

bool Recipe::clips_or_groups() const noexcept {
  return clip_.value > 0 || clip_.norm > 0 || clip_.global_norm > 0 || !groups_.empty();
}

// Whoever has passed a * may let it take one more whenever what follows does not fit.
bool fits(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  size_t star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace tutti::optim
