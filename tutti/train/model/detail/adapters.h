/// Modules with adapters (tutti/nn/lora.h), as files and checkpoints have them; not for users.
/// Thread rule: that of the module.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/nn/adapted.h"
#include "tutti/train/model/weights.h"

namespace tutti::detail {

/// Of CheckpointManifest::kept, and of the metadata of adapters.safetensors.
inline constexpr const char* kAdaptersPart = "adapters";

/// The module, where it has adapters; else null.
nn::Adapted* adapted(torch::nn::Module& module);
const nn::Adapted* adapted(const torch::nn::Module& module);

/// The parameters beside the adapters, which no update changes.
ModelState base_of(const nn::Adapted& module);

/// What a checkpoint remembers of a base that it has not: its digest, and the scale of each
/// matrix's adapters, as JSON.
std::string adapters_words(const nn::Adapted& module);

/// UsageError, which begins with `what`, where `words` of a checkpoint are of another base or other
/// adapters.
void require_adapters(const nn::Adapted& module, const std::string& words, const std::string& what);

/// load_weights() into a module. One with adapters takes the weights of the whole network, which
/// become its base, with B = 0; or adapters alone, as its own checkpoints and adapters.safetensors
/// have them, of its base: else UsageError. A warning where a file does not say of which base they
/// are, as snapshots of servers and files of PEFT.
LoadReport load_module(torch::nn::Module& module, const std::filesystem::path& path,
                       const LoadOptions& options = {});

/// Writes adapters.safetensors: `state` has the module's parameters, and its buffers as they are to
/// be saved.
void save_adapters(const nn::Adapted& module, const ModelState& state,
                   const std::filesystem::path& path);

/// The base's parameters on the CPU, and back: loading whole weights makes them the base.
NamedTensors copy_of_base(const nn::Adapted& module);
void put_back_base(const nn::Adapted& module, const NamedTensors& copy);

/// What adapters of `from` stand beside becomes that of `to`; nothing where there are none.
void copy_base(const torch::nn::Module& from, const torch::nn::Module& to, Millis limit);

}  // namespace tutti::detail
