/// Networks of .pt2 files that Model trains (tests/tables/exported/make_for_model.py), and data for
/// them.
#pragma once

#include <torch/torch.h>

#include <string>

#include "tutti/exported/from_export.h"
#include "tutti/strategy/input/from_tensors.h"

#include "tests/support/two_outputs.h"
#include "tests/unit/train/small_model.h"

namespace tutti {

inline const std::string kExportedNets = TUTTI_SOURCE_DIR "/tests/tables/exported/";

inline FromExport picture_net() {
  return from_export(kExportedNets + "pictures.pt2", {.eval = kExportedNets + "pictures.eval.pt2"});
}
inline FromExport both_net() { return from_export(kExportedNets + "both.pt2"); }

/// Bright in the half that the label tells.
inline data::Dataset bright_halves(int64_t count) {
  torch::manual_seed(3);
  const auto labels = torch::arange(count).remainder(2);
  auto images = torch::rand({count, 1, 12, 12});
  for (int64_t i = 0; i < count; ++i)
    images[i].slice(2, labels[i].item<int64_t>() * 6, labels[i].item<int64_t>() * 6 + 6) += 0.5;
  return data::from_tensors({images, labels});
}

inline CompileOptions for_pictures() {
  return {.optimizer = optim::sgd({.learning_rate = 0.1}),
          .loss = losses::sparse_categorical_crossentropy(),
          .metrics = {metrics::accuracy()}};
}

}  // namespace tutti
