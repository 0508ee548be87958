/// Weights as files and as a fingerprint: named tensors to safetensors and back.
/// Thread rule: one thread per module at a time.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tutti/data/safetensors.h"
#include "tutti/sync/updater.h"
#include "tutti/train/model/load_options.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// What a model is made of. Tied parameters stand under their first name.
struct ModelState {
  NamedTensors parameters;
  NamedTensors buffers;
};

/// All names that a model's tensors have, with the one that ModelState has of the same tensor: of
/// tied parameters the first.
using ParameterNames = std::map<std::string, std::string>;

/// The tensors of a module, not copied.
ModelState state_of(const torch::nn::Module& module);

/// What files have of it: state_of(), but with adapters (tutti/nn/lora.h) the weights that they and
/// what they stand beside give together, under PyTorch's names.
ModelState merged_state_of(const torch::nn::Module& module);

/// SHA-256 over parameters, then buffers, each in the order of their names (bytes compared). Of
/// each tensor: the line "name dtype [2, 3]\n", then its elements, row by row, little-endian. 64
/// hex digits.
std::string weights_sha256(const ModelState& state);

/// `parameter "fc.weight" has nan at element 3`: the first tensor, parameters before buffers, with
/// a value that is NaN or infinite. "": all are finite.
std::string what_is_not_finite(const ModelState& state);

/// Writes a safetensors file, atomically (data::write_safetensors).
void save_weights(const ModelState& state, const std::filesystem::path& path);

/// Throws DataError, which begins with `what` and lists every difference in names, shapes and
/// dtypes, with the nearest name, unless `file` has what `state` needs. `names` as in
/// load_weights().
void require_fit(const ModelState& state, const data::Safetensors& file,
                 const ParameterNames& names, const std::string& what);

/// Reads a file written by save_weights, or by anybody who uses the same names, a checkpoint
/// (checkpoint.h) or a snapshot of parameter servers (ps/snapshot/snapshot.h), into `state`'s
/// tensors, in place. Nothing is written unless everything fits.
///
/// names  that the file may hold beside those of `state`: tied parameters under their second name,
///        whose values there must be those under the first
///
/// Throws DataError that lists every difference in names, shapes and dtypes, with the nearest name;
/// of adapters (--lora) alone that they are no network. What `options` leave out stays as it is.
LoadReport load_weights(const ModelState& state, const std::filesystem::path& path,
                        const ParameterNames& names = {}, const LoadOptions& options = {});

/// Those of a module's parameters and buffers.
ParameterNames all_names(const torch::nn::Module& module);

}  // namespace tutti
