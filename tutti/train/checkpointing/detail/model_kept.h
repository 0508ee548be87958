/// What checkpoints keep of a model, as parts; not for users.
/// Thread rule: the thread of fit(), between runs.
#pragma once

#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/watch/detail/kept.h"

namespace tutti::detail {

/// Parameters with the optimizer, embedding tables, buffers, generators; in the order in which they
/// are put back.
KeptParts kept_of(Model::State& model);

/// Buffer `name` of a local replica: its own where there are as many replicas as there were, else
/// what Model::save() would have written. `which`: kBuffers, kKeptBuffers.
Array buffer_of(const CheckpointRead& read, const World& world, int local, const std::string& name,
                const char* which);

}  // namespace tutti::detail
