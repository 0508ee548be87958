/// --optimizer muon, adafactor: what the optimizer's flags say of a rule of whole parameters.
/// Thread rule: pure functions.
#pragma once

#include <optional>

#include "tutti/cli/train/optimizer_flags.h"
#include "tutti/optim/whole_rule.h"
#include "tutti/strategy/choice/choice.h"

namespace tutti::cli {

/// Nothing where --optimizer is elementwise: recipe_from()'s. UsageError names the flag whose value
/// is out of range, or which such a rule does not have (--clip-norm, --parameter-group).
std::optional<optim::WholeRule> whole_rule_from(const OptimizerFlags& flags);

/// Of either, as far as choose() wants it.
RecipeFacts optimizer_facts(const OptimizerFlags& flags);

/// The learning rate of either.
double learning_rate_of(const OptimizerFlags& flags);

/// Throws UsageError unless a step of either can have this rate.
void require_rate(const OptimizerFlags& flags, double learning_rate);

}  // namespace tutti::cli
