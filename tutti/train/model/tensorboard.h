/// callbacks::tensorboard() of a model: its graph, and histograms and pictures of its weights.
///
///   model.fit(train, {.epochs = 5, .callbacks = {callbacks::tensorboard(
///                                      model, {.folder = "logs", .histogram_freq = 1})}});
///
/// Thread rule: that of callbacks.
#pragma once

#include <memory>

#include "tutti/train/callbacks/tensorboard.h"
#include "tutti/train/model/model.h"

namespace tutti::callbacks {

/// The weights of the chief's first replica after an epoch, which are those of all; parameters that
/// are trained and frozen ones. A picture of a matrix has its elements as pixels, of a convolution
/// its kernels as tiles, from the least (black) to the greatest (white); of more than 512 rows or
/// columns the first. A graph has its layers' names, groups by dots. UsageError as of
/// tensorboard(options), for write_images without histogram_freq, and, before the first step, for
/// weights that no worker has whole, or has as they are: parameter servers, meshes, shard
/// "parameters", local updates, strategy tpu.
std::shared_ptr<Callback> tensorboard(const Model& model, TensorBoardOptions options);

}  // namespace tutti::callbacks
