/// A checkpoint as parts of a training read it (kept.h); not for users. Without LibTorch. Thread
/// rule: a plain value.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/state.h"

namespace tutti::detail {

struct CheckpointRead {
  std::string what;  ///< for errors: "checkpoint PATH"
  CheckpointManifest manifest{};
  CheckpointTensors tensors{};

  /// Tensors whose names begin so, by the rest of their names.
  CheckpointTensors under(const std::string& prefix) const;
  /// DataError: what part `name` has kept is none of its words, since `why`.
  DataError damaged(const std::string& name, const std::string& why) const;
  /// The words of part `name`, which are a list of `count` finite numbers, or DataError.
  std::vector<double> numbers(const std::string& name, size_t count) const;
};

/// A list of numbers as words, which CheckpointRead::numbers() reads back with the same bits.
std::string words_of(const std::vector<double>& numbers);

}  // namespace tutti::detail
