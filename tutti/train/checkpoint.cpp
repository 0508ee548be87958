// Checkpoints as they are read.

#include "tutti/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/sha256.h"
#include "tutti/comm/reduce_kernels.h"
#include "tutti/train/detail/checkpoint_format.h"

namespace tutti {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

// Reads or writes each field, so that both have the same ones.
template <class Manifest, class Field>
void for_each_fact(Manifest& m, Field field) {
  field("step", m.step);
  field("version", m.version);
  field("epoch", m.epoch);
  field("step_in_epoch", m.step_in_epoch);
  field("ended", m.ended);
  field("seed", m.seed);
  field("global_batch", m.global_batch);
  field("accumulate", m.accumulate);
  field("num_samples", m.num_samples);
  field("steps_per_epoch", m.steps_per_epoch);
  field("strategy", m.strategy);
  field("replicas", m.replicas);
  field("workers", m.workers);
  field("reduction_shape", m.reduction_shape);
  field("threads_per_replica", m.threads_per_replica);
  field("samples_sha256", m.samples_sha256);
  field("optimizer", m.optimizer);
  field("optimizer_options", m.optimizer_options);
  field("learning_rate", m.learning_rate);
  field("compression", m.compression);
  field("schedule", m.schedule);
  field("schedule_rates", m.schedule_rates);
  field("losses", m.losses);
  field("precision", m.precision);
  field("loss_scale", m.loss_scale);
  field("metrics", m.metrics);
  field("columns", m.columns);
  field("first_epoch", m.first_epoch);
  field("images", m.images);
  field("train_seconds", m.train_seconds);
  field("validation_seconds", m.validation_seconds);
  field("values", m.values);
  field("callbacks", m.callbacks);
  field("tutti_version", m.tutti_version);
  field("libtorch_version", m.libtorch_version);
  field("places", m.places);
}

constexpr const char* kSetAside = "damaged-step-";
constexpr const char* kOwnDigest = "sha256";  // of all other fields of a manifest

DataError damaged(const fs::path& path, const std::string& what) {
  return DataError(fmt::format("checkpoint {}: {}", path.string(), what));
}

}  // namespace

std::string CheckpointManifest::to_json() const {
  ordered_json json = {{"format", detail::kCheckpointFormat}};
  for_each_fact(*this, [&](const char* name, const auto& value) { json[name] = value; });
  json["files"] = ordered_json::array();
  for (const CheckpointFile& file : files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  json[kOwnDigest] = sha256_hex(json.dump());
  return json.dump(1) + "\n";
}

CheckpointManifest CheckpointManifest::from_json(std::string_view text, const fs::path& path) {
  CheckpointManifest manifest;
  try {
    auto json = ordered_json::parse(text);
    if (const std::string format = json.at("format"); format != detail::kCheckpointFormat)
      throw UsageError(
          fmt::format("checkpoint {} is of format \"{}\", which another version of tutti has "
                      "written; this one reads \"{}\"",
                      path.string(), format, detail::kCheckpointFormat));
    const std::string digest = json.at(kOwnDigest);
    json.erase(kOwnDigest);
    if (const std::string now = sha256_hex(json.dump()); now != digest)
      throw damaged(path, fmt::format("the values in {} have sha256 {}, {} was written",
                                      detail::kManifest, now, digest));
    for_each_fact(manifest, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    for (const auto& file : json.at("files"))
      manifest.files.push_back({file.at("name"), file.at("bytes"), file.at("sha256")});
  } catch (const nlohmann::json::exception& error) {
    throw damaged(path, fmt::format("{} cannot be read: {}", detail::kManifest, error.what()));
  }
  return manifest;
}

std::string name_of_checkpoint(int64_t step) { return fmt::format("step-{:012}", step); }

namespace {

bool is_folder_named(const fs::path& path, std::string_view begin) {
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  std::error_code failure;
  return name.string().starts_with(begin) && fs::is_directory(path, failure);
}

std::vector<fs::path> folders_in(const fs::path& folder, std::string_view begin) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure))
    if (is_folder_named(at->path(), begin)) found.push_back(at->path());
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool is_training(const fs::path& path) { return is_folder_named(path, "step-"); }

std::vector<fs::path> trainings_in(const fs::path& folder) { return folders_in(folder, "step-"); }

std::vector<fs::path> damaged_trainings_in(const fs::path& folder) {
  return folders_in(folder, kSetAside);
}

fs::path set_aside(const fs::path& checkpoint) {
  const fs::path aside = checkpoint.parent_path() / ("damaged-" + checkpoint.filename().string());
  fs::path free = aside;
  for (int number = 2; fs::exists(free); ++number)
    free = fmt::format("{}.{}", aside.string(), number);
  fs::rename(checkpoint, free);
  return free;
}

// ---- one checkpoint ----

TrainingCheckpoint::TrainingCheckpoint(fs::path path) : path_(std::move(path)) {
  const MappedFile file = map_file(path_ / detail::kManifest);
  manifest_ = CheckpointManifest::from_json(
      {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()}, path_);
}

void TrainingCheckpoint::verify() const {
  const fs::path name = path_.has_filename() ? path_.filename() : path_.parent_path().filename();
  if (name != name_of_checkpoint(manifest_.step))
    throw damaged(path_, fmt::format("it is of step {}, so its name is {}", manifest_.step,
                                     name_of_checkpoint(manifest_.step)));
  for (const CheckpointFile& file : manifest_.files) {
    const MappedFile mapped = map_file(path_ / file.name);
    if (std::ssize(mapped.bytes) != file.bytes)
      throw damaged(path_, fmt::format("{} has {} bytes, {} were written", file.name,
                                       mapped.bytes.size(), file.bytes));
    Sha256 sha;
    sha.update(mapped.bytes.data(), mapped.bytes.size());
    if (sha.hex() != file.sha256)
      throw damaged(path_, fmt::format("{} has sha256 {}, {} was written", file.name, sha.hex(),
                                       file.sha256));
  }
}

std::map<std::string, Array> TrainingCheckpoint::tensors() const {
  std::map<std::string, Array> found;
  for (const CheckpointFile& file : manifest_.files)
    for (auto& [name, array] : data::read_safetensors(path_ / file.name).arrays)
      found.insert_or_assign(name, std::move(array));
  for (const auto& [name, file] : manifest_.places)
    if (!found.contains(name)) throw damaged(path_, fmt::format("\"{}\" is not in {}", name, file));
  return found;
}

Array detail::merged_buffer(const std::string& name, const std::map<std::string, Array>& tensors,
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
  return weights;
}

}  // namespace tutti
