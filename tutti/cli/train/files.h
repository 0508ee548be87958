/// What `tutti train` begins with and leaves behind, and where. Without LibTorch.
/// Thread rule: the main thread alone.
#pragma once

#include <filesystem>
#include <vector>

namespace tutti::cli {

struct DataSpec;
struct TrainFlags;

/// Throws UsageError where weights of --from are not there, or are not for this training of `spec`.
void check_from(const TrainFlags& flags, const DataSpec& spec);
/// The newest at --from.
std::filesystem::path weights_to_begin_with(const TrainFlags& flags);

/// In the folder of --out.
std::filesystem::path weights_file(const TrainFlags& flags);
std::filesystem::path adapters_file(const TrainFlags& flags);  ///< of --lora
std::filesystem::path history_file(const TrainFlags& flags);
std::filesystem::path picture_file(const TrainFlags& flags);
/// Beside wherever weights of this training are to lie.
std::vector<std::filesystem::path> spec_files(const TrainFlags& flags);

bool keeps_checkpoints(const TrainFlags& flags);

/// Makes the folder. Throws UsageError where something cannot be written there.
void check_outputs(const TrainFlags& flags);

}  // namespace tutti::cli
