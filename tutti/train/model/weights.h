/// Weights as files and as a fingerprint: named tensors to safetensors and back.
/// Thread rule: one thread per module at a time.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/safetensors.h"
#include "tutti/sync/updater.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// What a model is made of. Tied parameters stand under their first name.
struct ModelState {
  NamedTensors parameters;
  NamedTensors buffers;
};

/// The tensors of a module, not copied.
ModelState state_of(const torch::nn::Module& module);

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
/// dtypes, with the nearest name, unless `file` has what `state` needs. `aliases` as in
/// load_weights().
void require_fit(const ModelState& state, const data::Safetensors& file,
                 const std::vector<std::string>& aliases, const std::string& what);

/// Reads a file written by save_weights, or by anybody who uses the same names, a checkpoint
/// (checkpoint.h) or a snapshot of parameter servers (ps/snapshot/snapshot.h), into `state`'s
/// tensors, in place. Nothing is written unless everything fits.
///
/// aliases  further names that the file may hold (tied parameters under their second name); ignored
///
/// Throws DataError that lists every difference in names, shapes and dtypes, with the nearest name.
void load_weights(const ModelState& state, const std::filesystem::path& path,
                  const std::vector<std::string>& aliases = {});

/// All names of a module's parameters and buffers, second names of tied ones included.
std::vector<std::string> all_names(const torch::nn::Module& module);

}  // namespace tutti
