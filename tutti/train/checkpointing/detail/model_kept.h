/// What checkpoints keep of a model, as parts; not for users.
/// Thread rule: the thread of fit(), between runs.
#pragma once

#include <memory>
#include <string>

#include "tutti/train/model/detail/model_state.h"
#include "tutti/train/watch/detail/kept.h"

namespace tutti::detail {

/// Parameters with the optimizer, embedding tables, buffers, generators, scale of losses; in the
/// order in which they are put back.
KeptParts kept_of(Model::State& model);

/// Rows and states of these.
std::unique_ptr<Kept> kept_tables(SparseTables& tables);
/// Of an optimizer that scales losses; `name`: of its words.
std::unique_ptr<Kept> kept_loss_scale(Optimizer& optimizer, std::string name);
/// The replicas' generators, and LibTorch's default one of this process.
std::unique_ptr<Kept> kept_generators(Strategy& strategy);

/// Buffer `name` of a local replica: its own where there are as many replicas as there were, else
/// what Model::save() would have written. `which`: kBuffers, kKeptBuffers.
Array buffer_of(const CheckpointRead& read, const World& world, int local, const std::string& name,
                const char* which);

}  // namespace tutti::detail
