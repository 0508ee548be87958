#include "tutti/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

DataError damaged(const fs::path& path, const std::string& what) {
  return DataError(fmt::format("checkpoint {}: {}", path.string(), what));
}

}  // namespace

TrainingCheckpoint::TrainingCheckpoint(fs::path path) : path_(std::move(path)) {
  manifest_ = CheckpointManifest::from_json(read_file(path_ / store::kManifest), path_);
}

void TrainingCheckpoint::verify() const {
  const fs::path name = path_.has_filename() ? path_.filename() : path_.parent_path().filename();
  if (name != name_of_checkpoint(manifest_.step))
    throw damaged(path_, fmt::format("it is of step {}, so its name is {}", manifest_.step,
                                     name_of_checkpoint(manifest_.step)));
  for (const CheckpointFile& file : manifest_.files)
    if (const std::string why = store::damage_of(file, path_); !why.empty())
      throw damaged(path_, fmt::format("{} {}", file.name, why));
  tensors();
}

CheckpointTensors TrainingCheckpoint::tensors() const {
  CheckpointTensors found;
  for (const CheckpointFile& file : manifest_.files)
    for (auto& [name, array] : data::read_safetensors(path_ / file.name).arrays) {
      const auto place = manifest_.places.find(name);
      if (place == manifest_.places.end() || place->second != file.name)
        throw damaged(path_, fmt::format("\"{}\" is in {}, where the manifest does not place it",
                                         name, file.name));
      found.emplace(name, std::move(array));
    }
  for (const auto& [name, file] : manifest_.places)
    if (!found.contains(name)) throw damaged(path_, fmt::format("\"{}\" is not in {}", name, file));
  require_sound_state(manifest_, found, path_);
  return found;
}

Array detail::merged_buffer(const std::string& name, const CheckpointTensors& tensors,
                            const CheckpointManifest& manifest, std::string_view which) {
  const Array& first = tensors.at(detail::buffer_name(0, name, which));
  if (!is_floating(first.dtype())) return first;
  std::vector<const void*> inputs;
  for (int rank = 0; rank < manifest.replicas; ++rank)
    inputs.push_back(tensors.at(detail::buffer_name(rank, name, which)).data());
  Array mean = Array::zeros(first.dtype(), first.shape());
  reduce_inputs(first.dtype(), ReduceOp::mean, ReductionShape::parse(manifest.reduction_shape),
                inputs, mean.data(), mean.num_elements());
  return mean;
}

std::vector<data::NamedArray> weights_of(const TrainingCheckpoint& checkpoint) {
  const auto tensors = checkpoint.tensors();
  const std::string first_buffers = detail::buffer_name(0, "");
  std::vector<data::NamedArray> weights;
  for (const auto& [name, array] : tensors) {
    if (name.starts_with(detail::kParameters))
      weights.push_back({name.substr(std::strlen(detail::kParameters)), array});
    else if (name.starts_with(first_buffers)) {
      const std::string own = name.substr(first_buffers.size());
      weights.push_back(
          {own, detail::merged_buffer(own, tensors, checkpoint.manifest(), detail::kBuffers)});
    }
  }
  // Of a loop with one model, as that has them.
  if (const std::string model = model_of_loop(checkpoint.manifest()); !model.empty())
    for (data::NamedArray& weight : weights) weight.name.erase(0, model.size() + 1);
  return weights;
}

std::string model_of_loop(const CheckpointManifest& manifest) {
  const auto is_module = [](const auto& named) { return named.second == detail::kModule; };
  if (std::ranges::count_if(manifest.loop, is_module) != 1) return "";
  return std::ranges::find_if(manifest.loop, is_module)->first;
}

CheckpointTensors table_rows_of(const TrainingCheckpoint& checkpoint) {
  CheckpointTensors rows;
  for (const auto& [name, array] : checkpoint.tensors())
    if (name.starts_with(detail::kTables))
      rows.emplace(name.substr(std::strlen(detail::kTables)), array);
  return rows;
}

}  // namespace tutti
