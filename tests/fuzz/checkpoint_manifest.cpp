#include "tests/fuzz/checkpoint_manifest.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/state.h"
#include "tutti/data/safetensors.h"

#include "tests/unit/checkpoint/sound.h"

namespace tutti::test {
namespace {

/// What whoever reads a checkpoint relies on: ends the process where it does not hold.
void relied_on(bool holds) {
  if (!holds) std::abort();
}

void read_manifest(const std::string& text) {
  const CheckpointManifest m = CheckpointManifest::from_json(text, "fuzzer");
  relied_on(m.step >= 0 && m.step <= kMostCounted && m.epoch <= kMostCounted);
  relied_on(m.step_in_epoch >= 0 && m.step_in_epoch <= m.steps_per_epoch);
  relied_on(m.replicas >= 1 && m.workers >= 1 && m.replicas % m.workers == 0);
  for (const auto& [name, words] : m.kept) relied_on(is_json(words));
  relied_on(std::ssize(m.files) == m.workers);
  for (const CheckpointFile& file : m.files)
    relied_on(file.name.find('/') == std::string::npos && file.name.starts_with("part-"));
  const std::string again = m.to_json();
  relied_on(CheckpointManifest::from_json(again, "fuzzer").to_json() == again);
}

}  // namespace

void checkpoint_manifest(std::string_view bytes) {
  const std::string text(bytes);
  try {
    read_manifest(text);
    return;
  } catch (const Error&) {
  }
  // A digest keeps whoever changes a byte from all that comes after it.
  if (std::ranges::count_if(text, [](char c) { return c == '[' || c == '{'; }) > 1000) return;
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) return;
  json.erase("sha256");
  json["sha256"] = sha256_hex(json.dump());
  read_manifest(json.dump());
}

void checkpoint_state(std::string_view bytes) {
  const MappedFile file{std::as_bytes(std::span(bytes)), nullptr};
  CheckpointTensors tensors;
  for (auto& [name, array] : data::parse_safetensors(file, "fuzzer").arrays)
    tensors.emplace(name, std::move(array));
  const CheckpointManifest manifest = sound_manifest();
  require_sound_state(manifest, tensors, "fuzzer");

  const Array& history = tensors.at(detail::kHistoryRows);
  relied_on(history.shape().at(1) == std::ssize(manifest.columns));
  relied_on(history.shape().at(0) <= manifest.epoch);
  for (const auto& [name, array] : tensors) {
    const std::string first = detail::buffer_name(0, "");
    if (!name.starts_with(first)) continue;
    for (int rank = 0; rank < manifest.replicas; ++rank)
      relied_on(tensors.at(detail::buffer_name(rank, name.substr(first.size()))).num_bytes() ==
                array.num_bytes());
  }
  for (int rank = 0; rank < manifest.replicas; ++rank) {
    const auto numbers = tensors.at(detail::totals_name(rank)).as<double>();
    relied_on(static_cast<int64_t>(numbers[0]) >= 0);
    relied_on(tensors.at(detail::replica_generator_name(rank)).num_bytes() > 0);
  }
}

}  // namespace tutti::test
