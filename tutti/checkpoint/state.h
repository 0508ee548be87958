/// Whether the tensors of a checkpoint are those that its manifest speaks of: names, replicas,
/// dtypes, shapes, and the numbers that others count with. Whether they fit a model knows who has
/// one. Without LibTorch. Thread rule: a pure function.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tutti/base/array.h"
#include "tutti/checkpoint/manifest.h"

namespace tutti {

/// Tensors of all files of a checkpoint, by name.
using CheckpointTensors = std::map<std::string, Array>;

/// Throws DataError naming `path` (the checkpoint) and the tensor, with what was got and expected.
/// Weights and sums of losses may be any numbers, also none (NaN): trainings go on with them.
void require_sound_state(const CheckpointManifest& manifest, const CheckpointTensors& tensors,
                         const std::filesystem::path& path);

}  // namespace tutti
