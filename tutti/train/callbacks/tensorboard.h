/// What TensorBoard shows of a training beside its scalars by epoch: those of steps, and what a
/// program writes itself. What it shows of a model: train/model/tensorboard.h.
///
/// Thread rule: that of callbacks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "tutti/observe/tensorboard.h"
#include "tutti/train/callbacks/callbacks.h"

namespace tutti {

/// With the names and tags of Keras.
struct TensorBoardOptions {
  std::filesystem::path folder;
  /// > 0: after every so many updates "batch_loss", "batch_accuracy" and so on too, by update, of
  /// what the chief's first replica has seen in this epoch, and "batch_learning_rate"; 1 is Keras's
  /// "batch", 0 its "epoch".
  int64_t update_freq = 0;
  int64_t histogram_freq = 0;  ///< > 0, with a model: "NAME/histogram" after every so many epochs
  bool write_graph = true;     ///< with a model that is a graph: its layers, once
  bool write_images = false;   ///< with a model, beside its histograms: "NAME/image"
  /// After each epoch, with the writer of folder/train: pictures, texts, histograms of one's own.
  std::function<void(EventWriter& events, Training& training)> after_epoch{};
};

namespace detail {
/// What is known of a model; not for users.
struct ModelEvents {
  std::function<void(EventWriter& events)> begin{};
  std::function<void(EventWriter& events, int64_t epoch)> after_epoch{};
};
std::shared_ptr<Callback> tensorboard_of(TensorBoardOptions options, ModelEvents model);
}  // namespace detail

namespace callbacks {

/// UsageError for an empty folder, a frequency below 0, and for what needs a model.
std::shared_ptr<Callback> tensorboard(TensorBoardOptions options);

}  // namespace callbacks
}  // namespace tutti
