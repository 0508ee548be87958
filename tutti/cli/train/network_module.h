/// A Network as a Model takes it. Thread rule: that of the module.
#pragma once

#include "tutti/cli/train/network.h"
#include "tutti/exported/module.h"
#include "tutti/train/model/detail/erased_model.h"

namespace tutti::cli {

inline tutti::detail::ErasedModel made_of(const Network& network) {
  return network.graph ? tutti::detail::erase(*network.graph)
                       : tutti::detail::erase((*network.exported)());
}

}  // namespace tutti::cli
