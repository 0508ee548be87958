/// Manifests as JSON: with the facts of files, and sealed by a digest of all that they say.
/// Thread rule: pure functions.
#pragma once

#include <string>
#include <utility>

#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/store/file_facts.h"

namespace tutti::store {

template <class J>
J json_of(const FileFacts& facts) {
  return {{"name", facts.name}, {"bytes", facts.bytes}, {"sha256", facts.sha256}};
}

/// The field that has the digest of all others.
inline constexpr const char* kSeal = "sha256";

/// `manifest` with that field; one that it has is replaced.
template <class J>
J sealed(J manifest) {
  manifest.erase(kSeal);
  manifest[kSeal] = sha256_hex(dump_json(manifest));
  return manifest;
}

/// Takes the field out. "its values have sha256 X, Y was written"; "" where they are as they were
/// written. Throws JsonError where there is no such text.
template <class J>
std::string take_seal(J& manifest) {
  const std::string written = manifest.at(kSeal);
  manifest.erase(kSeal);
  const std::string now = sha256_hex(dump_json(manifest));
  return now == written ? "" : "its values have sha256 " + now + ", " + written + " was written";
}

}  // namespace tutti::store
