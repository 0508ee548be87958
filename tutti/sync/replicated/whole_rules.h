/// optim::muon() and optim::adafactor(): optimizers that need a parameter as a whole.
///
///   model.compile({.optimizer = tutti::optim::muon({.learning_rate = 0.02}), .loss = loss});
///
/// They are made as torch optimizers are: gradients are summed, then every replica makes the whole
/// step on its own copy, with the same bits in threads, in processes and in turn. Formulas and
/// ranges: tutti/optim/whole_rule.h. Thread rule: pure functions.
#pragma once

#include <string>

#include "tutti/optim/whole_rule.h"
#include "tutti/sync/updater.h"

namespace tutti {

/// For Optimizer and Model::compile(), which know the parameters' names; called by anybody else it
/// throws UsageError. Throws UsageError naming the field that is out of range.
TorchOptimizerFactory factory_of(const optim::WholeRule& rule);

/// The rule of a factory that factory_of() made; null for others. Valid as long as the factory.
const optim::WholeRule* whole_rule_of(const TorchOptimizerFactory& factory);

/// optim::WholeRule::more_than_a_rule() of such a factory; "" for others.
std::string more_than_a_rule(const TorchOptimizerFactory& factory);

namespace optim {

inline TorchOptimizerFactory muon(MuonOptions options = {}) {
  return factory_of(WholeRule(std::move(options)));
}
inline TorchOptimizerFactory adafactor(AdafactorOptions options = {}) {
  return factory_of(WholeRule(options));
}

}  // namespace optim
}  // namespace tutti
