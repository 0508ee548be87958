/// What is written into a model and what of it is written out, beside training.
#pragma once

#include <string>

#include "tutti/strategy/modules/replicated.h"

namespace tutti::detail {

/// Gives every parameter memory of its own again, as a second optimizer must find it: the fused
/// step keeps those of all replicas in one storage.
void own_storage(const ReplicatedModules& modules);

/// `embedding tables "user", "item"`; "": it has none.
std::string table_words(const torch::nn::Module& module);

}  // namespace tutti::detail
