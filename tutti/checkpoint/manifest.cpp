#include "tutti/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/reduction_shape.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/mesh/mesh.h"
#include "tutti/store/numbered_folder.h"
#include "tutti/store/sealed_json.h"

namespace tutti {

namespace fs = std::filesystem;

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
  field("metrics", m.metrics);
  field("columns", m.columns);
  field("first_epoch", m.first_epoch);
  field("images", m.images);
  field("train_seconds", m.train_seconds);
  field("validation_seconds", m.validation_seconds);
  field("values", m.values);
  field("tutti_version", m.tutti_version);
  field("libtorch_version", m.libtorch_version);
  field("places", m.places);
}

// The same of what is not in every manifest: it is written where that is `needed`.
template <class Manifest, class Field>
void for_each_fact_that_may_lack(Manifest& m, Field field) {
  field("tables", m.tables, !m.tables.empty());
  field("loop", m.loop, !m.loop.empty());
  field("lives", m.lives, !m.lives.empty());
  field("dense_kernel", m.dense_kernel, true);  // not in the first checkpoints
  field("mesh", m.mesh, !m.mesh.empty());
  field("microbatches", m.microbatches, m.microbatches > 1);
  field("tensor_blocks", m.tensor_blocks, m.tensor_blocks > 1);
  field("given_shares", m.given_shares, !m.given_shares.empty());
  field("data_sha256", m.data_sha256, !m.data_sha256.empty());
  field("validation_sha256", m.validation_sha256, !m.validation_sha256.empty());
}

constexpr const char* kKept = "kept";  // not in those of version 1
constexpr int kDeepest = 8;            // a manifest needs 5; JSON is printed by recursion

// What version 1 had in fields of its own, as parts of a training keep it since.
OrderedJson kept_of_version_1(const OrderedJson& json, int replicas) {
  OrderedJson kept = {{"callbacks", json.at("callbacks")},
                      {"shares",
                       {{"format", "tutti shares 1"},
                        {"replicas", replicas},
                        {"changes", json.value("shares", OrderedJson::array())}}}};
  if (!json.at("loss_scale").empty()) kept["loss_scale"] = json.at("loss_scale");
  if (json.contains("noise_scale")) kept["noise_scale"] = json.at("noise_scale");
  return kept;
}

// Reads a manifest, or says which field of it is not as it must be.
class ManifestReader {
 public:
  explicit ManifestReader(const fs::path& path) : path_(path) {}

  CheckpointManifest read(std::string_view text) const {
    try {
      OrderedJson json = parse_json<OrderedJson>(text, kDeepest);
      const bool version_1 = require_written(json) == detail::kCheckpointFormat1;
      CheckpointManifest manifest;
      for_each_fact(manifest, [&](const char* name, auto& value) { get(name, json, value); });
      for_each_fact_that_may_lack(manifest, [&](const char* name, auto& value, bool) {
        if (json.contains(name)) get(name, json, value);
      });
      read_kept(version_1 ? kept_of_version_1(json, manifest.replicas) : json.at(kKept),
                manifest.kept);
      const OrderedJson& files = json.at("files");
      require(files.is_array(), "files", files.dump(), "a list");
      for (const OrderedJson& file : files) {
        CheckpointFile& one = manifest.files.emplace_back();
        get("name", file, one.name);
        get("bytes", file, one.bytes);
        get("sha256", file, one.sha256);
      }
      check(manifest);
      return manifest;
    } catch (const JsonError& error) {
      throw damaged(fmt::format("cannot be read: {}", error.what()));
    }
  }

 private:
  DataError damaged(const std::string& what) const {
    return DataError(fmt::format("checkpoint {}: {}: {}", path_.string(), store::kManifest, what));
  }

  template <class Got>
  void require(bool good, std::string_view field, const Got& got, std::string_view expected) const {
    if (!good) throw damaged(fmt::format("{} is {}, expected {}", field, got, expected));
  }

  // Of a known format, which it returns, and as it was written; takes the digest out.
  std::string require_written(OrderedJson& json) const {
    std::string format = json.at("format");
    if (format != detail::kCheckpointFormat && format != detail::kCheckpointFormat1)
      throw UsageError(fmt::format(
          "checkpoint {} is of format \"{}\", which another version of tutti has "
          "written; this one reads \"{}\" and \"{}\"",
          path_.string(), format, detail::kCheckpointFormat, detail::kCheckpointFormat1));
    if (const std::string why = store::take_seal(json); !why.empty()) throw damaged(why);
    return format;
  }

  void read_kept(const OrderedJson& parts, std::map<std::string, std::string>& kept) const {
    require(parts.is_object(), kKept, dump_json(parts), "what each part keeps, by name");
    for (const auto& [name, words] : parts.items()) kept[name] = dump_json(words);
  }

  // A number of JSON becomes any C++ number in silence: 1e308 a seed, -1 a size.
  template <class T>
  void get(const char* name, const OrderedJson& json, T& value) const {
    const OrderedJson& got = json.at(name);
    if constexpr (std::is_same_v<T, bool>) {
      require(got.is_boolean(), name, got.dump(), "true or false");
      value = got.get<bool>();
    } else if constexpr (std::is_unsigned_v<T>) {
      require(got.is_number_unsigned(), name, got.dump(), "a whole number, 0 or more");
      value = got.get<T>();
    } else if constexpr (std::is_integral_v<T>) {
      const bool whole = got.is_number_integer() &&
                         (!got.is_number_unsigned() ||
                          got.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
      constexpr auto most = std::min<int64_t>(std::numeric_limits<T>::max(), kMostCounted);
      require(whole && got.get<int64_t>() >= 0 && got.get<int64_t>() <= most, name, got.dump(),
              fmt::format("a whole number, 0 to {}", most));
      value = static_cast<T>(got.get<int64_t>());
    } else {
      try {
        got.get_to(value);
      } catch (const JsonError& error) {
        throw damaged(fmt::format("{}: {}", name, error.what()));
      }
    }
  }

  void check(const CheckpointManifest& m) const {
    if (m.loop.empty()) check_samples(m);
    check_place(m);
    check_replicas(m);
    check_files(m);
    const auto finite = [&](const char* name, double value, double least) {
      require(std::isfinite(value) && value >= least, name, value,
              fmt::format("a finite number, {} or more", least));
    };
    finite("learning_rate", m.learning_rate, std::numeric_limits<double>::lowest());
    finite("train_seconds", m.train_seconds, 0);
    finite("validation_seconds", m.validation_seconds, 0);
  }

  // Where the training was.
  void check_place(const CheckpointManifest& m) const {
    const auto at_least_1 = [&](const char* name, int64_t value) {
      require(value >= 1, name, value, "1 or more");
    };
    at_least_1("accumulate", m.accumulate);
    at_least_1("threads_per_replica", m.threads_per_replica);
    const int64_t most = std::min(m.steps_per_epoch, m.step);
    require(m.step_in_epoch <= most, "step_in_epoch", m.step_in_epoch,
            fmt::format("0 to {}, of {} steps of the training and {} an epoch", most, m.step,
                        m.steps_per_epoch));
    require(m.first_epoch <= m.epoch, "first_epoch", m.first_epoch,
            fmt::format("0 to {}, which is epoch", m.epoch));
    const auto digest_or_none = [&](const char* name, const std::string& digest) {
      require(digest.empty() || store::is_sha256(digest), name, digest, "64 hex digits");
    };
    digest_or_none("data_sha256", m.data_sha256);
    digest_or_none("validation_sha256", m.validation_sha256);
  }

  // Which those of fit() have.
  void check_samples(const CheckpointManifest& m) const {
    const auto at_least_1 = [&](const char* name, int64_t value) {
      require(value >= 1, name, value, "1 or more");
    };
    at_least_1("global_batch", m.global_batch);
    at_least_1("num_samples", m.num_samples);
    at_least_1("steps_per_epoch", m.steps_per_epoch);
    require(!m.columns.empty(), "columns", "an empty list", "those of History");
    require(store::is_sha256(m.samples_sha256), "samples_sha256", m.samples_sha256,
            "64 hex digits");
  }

  int ranks_of(const CheckpointManifest& m) const {
    if (m.mesh.empty()) return m.replicas;
    try {
      const auto mesh = mesh::Mesh::parse(m.mesh, 0);
      require(mesh.data_replicas() == m.replicas, "mesh", m.mesh,
              fmt::format("one of {} replicas", m.replicas));
      return mesh.replicas();
    } catch (const UsageError& error) {
      throw damaged(fmt::format("mesh: {}", error.what()));
    }
  }

  void check_replicas(const CheckpointManifest& m) const {
    require(m.replicas >= 1, "replicas", m.replicas, "1 or more");
    const int ranks = ranks_of(m);
    require(m.workers >= 1 && ranks % m.workers == 0, "workers", m.workers,
            fmt::format("a number that divides the {} {}", ranks,
                        m.mesh.empty() ? "replicas" : "ranks of the mesh"));
    require(m.microbatches >= 1, "microbatches", m.microbatches, "1 or more");
    require(m.tensor_blocks >= 1, "tensor_blocks", m.tensor_blocks, "1 or more");
    int shaped = 0;
    try {
      shaped = ReductionShape::parse(m.reduction_shape).replicas();
    } catch (const UsageError& error) {
      throw damaged(fmt::format("reduction_shape: {}", error.what()));
    }
    require(shaped == m.replicas, "reduction_shape", m.reduction_shape,
            fmt::format("one of {} replicas", m.replicas));
  }

  // One of each worker, in the folder itself; tensors are in these.
  void check_files(const CheckpointManifest& m) const {
    require(std::ssize(m.files) == m.workers, "files", fmt::format("a list of {}", m.files.size()),
            fmt::format("one for each of {} workers", m.workers));
    std::set<std::string_view> names;
    for (int worker = 0; worker < m.workers; ++worker) {
      const CheckpointFile& file = m.files[static_cast<size_t>(worker)];
      const std::string name = detail::part_file(worker, m.workers);
      require(file.name == name, "files: a name", file.name, name);
      require(store::is_sha256(file.sha256), "files: sha256 of " + name, file.sha256,
              "64 hex digits");
      names.insert(file.name);
    }
    for (const auto& [tensor, file] : m.places)
      require(names.contains(file), fmt::format("places: the file of \"{}\"", tensor), file,
              fmt::format("one of {} files", names.size()));
  }

  const fs::path& path_;
};

}  // namespace

std::string CheckpointManifest::to_json() const {
  OrderedJson json = {{"format", detail::kCheckpointFormat}};
  for_each_fact(*this, [&](const char* name, const auto& value) { json[name] = value; });
  for_each_fact_that_may_lack(*this, [&](const char* name, const auto& value, bool needed) {
    if (needed) json[name] = value;
  });
  json[kKept] = OrderedJson::object();
  for (const auto& [name, words] : kept) json[kKept][name] = parse_json<OrderedJson>(words);
  json["files"] = OrderedJson::array();
  for (const CheckpointFile& file : files)
    json["files"].push_back(store::json_of<OrderedJson>(file));
  return store::sealed(std::move(json)).dump(1) + "\n";
}

CheckpointManifest CheckpointManifest::from_json(std::string_view text, const fs::path& path) {
  return ManifestReader(path).read(text);
}

}  // namespace tutti
