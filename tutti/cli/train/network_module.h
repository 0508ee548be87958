/// A Network as a Model takes it. Thread rule: that of the module.
#pragma once

#include "tutti/cli/train/network.h"
#include "tutti/exported/module.h"
#include "tutti/train/model/detail/erased_model.h"

namespace tutti::cli {

inline tutti::detail::ErasedModel made_of(const Network& network) {
  if (network.exported) return tutti::detail::erase((*network.exported)());
  if (network.loras.empty()) return tutti::detail::erase(*network.graph);
  return tutti::detail::erase(nn::make_module(*network.graph, network.loras));
}

}  // namespace tutti::cli
