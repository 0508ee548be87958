/// Recipe: a Rule, what is done to gradients before it, and parameters that are treated apart.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/optim/rule.h"

namespace tutti::optim {

/// Clipping of the gradients that were summed over replicas, as Keras has it. One field at most;
/// 0: not.
struct Clip {
  double value = 0;        ///< every element to [-value, value]
  double norm = 0;         ///< each tensor longer than that is scaled to that length
  double global_norm = 0;  ///< all tensors together, by one factor
};

/// Parameters that are treated apart: the first group whose pattern fits a name counts.
struct Group {
  std::string pattern;              ///< of the whole name: * any characters, ? any one ("*.bias")
  double learning_rate_factor = 1;  ///< >= 0, times the learning rate of the step
  std::optional<double> weight_decay{};  ///< in place of the rule's
};

/// A copyable, immutable description. Thread rule: any thread may use any copy.
class Recipe {
 public:
  /// Throws UsageError naming the field, its value and the range; for a group with a weight decay
  /// and a rule that has none.
  Recipe(Rule rule, Clip clip = {}, std::vector<Group> groups = {});  // NOLINT: a Rule is a Recipe

  const Rule& rule() const noexcept { return rule_; }
  const Clip& clip() const noexcept { return clip_; }
  const std::vector<Group>& groups() const noexcept { return groups_; }

  /// The group of a parameter; none: null.
  const Group* group_of(std::string_view name) const;
  /// The rule for it, with its group's weight decay.
  Rule rule_for(std::string_view name) const;

  /// What there is beside an elementwise rule that is the same for all, in words; "" when nothing.
  std::string more_than_a_rule() const;
  /// It clips gradients, or treats some parameters apart.
  bool clips_or_groups() const noexcept;

 private:
  Rule rule_;
  Clip clip_;
  std::vector<Group> groups_;
};

/// Whether all of `text` fits `pattern`: * any characters, ? any one.
bool fits(std::string_view pattern, std::string_view text);

}  // namespace tutti::optim
