/// Which weights a training has left in a folder: one answer for all who read them.
/// Thread rule: pure functions of the disk.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace tutti {

struct FoundWeights {
  std::filesystem::path path;  ///< as Model::load() takes it
  std::filesystem::file_time_type written{};
  bool is_end = false;  ///< model.safetensors, which `tutti train` writes at its end
};

/// `place`: a file of weights, a checkpoint or snapshot, or a folder of some: that of --out, of
/// --snapshots, of CheckpointOptions. The last one is what the training has come to: checkpoints
/// and snapshots that are whole stand in the order of their steps, and model.safetensors before
/// the checkpoints that were written after it, by a training that went on from there and is not
/// over; but after all snapshots, of which servers write the last behind it. None where nothing is
/// there. Throws as trainings_in().
std::vector<FoundWeights> weights_in(const std::filesystem::path& place);

/// What lies beside the weights of a network that was written in Python, as `tutti train` keeps it;
/// `evaluation` where there was such a file.
inline constexpr const char* kExportFile = "model.pt2";
inline constexpr const char* kEvalExportFile = "model.eval.pt2";
struct FoundExport {
  std::filesystem::path network, evaluation{};
};
/// In the folder of `weights`, a file or folder, or one or two above; none: it is not there.
std::optional<FoundExport> export_beside(const std::filesystem::path& weights);

}  // namespace tutti
