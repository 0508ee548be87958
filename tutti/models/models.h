/// The zoo: networks as nn::Graph, by function or by name.
///
/// They take doodles as quickdraw() delivers them, float32 [batch, 1, 28, 28], unless told, and
/// give logits [batch, classes] for sparse_categorical_crossentropy. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::models {

struct ImageOptions {
  int64_t classes = 10;        ///< >= 1: logits per sample
  nn::Shape input{1, 28, 28};  ///< of one sample: {channels, height, width}
};

/// y = w x + b, one dense unit: input [batch, features], output [batch, 1].
nn::Graph linear_regression(int64_t features = 1);

/// Flatten, dense 128, ReLU, dense classes: 784-128-10 on doodles.
nn::Graph mlp(ImageOptions options = {});

/// Flatten, two dense layers of 2048 with ReLU, dense classes: much memory, little arithmetic.
nn::Graph wide(ImageOptions options = {});

/// Three blocks of conv 3x3 (16, 32, 64 channels, padding 1), ReLU and 2x2 max-pool; dense 128,
/// ReLU, dense classes. Height and width of 8 or more. Its other name is cnn.
nn::Graph doodle_cnn(ImageOptions options = {});

struct Resnet18Options {
  int64_t classes = 1000;
  nn::Shape input{3, 224, 224};  ///< one channel is repeated to three; never resized
};

/// He et al. 2015, arXiv:1512.03385, with torchvision's names ("layer1.0.conv1.weight", ...,
/// "fc.bias"), so that its weights load.
nn::Graph resnet18(Resnet18Options options = {});

/// Names that model_by_name() knows, sorted.
const std::vector<std::string>& model_names();

/// linear_regression takes its features from the input shape, and no classes. Unknown names throw
/// UsageError with the nearest known one.
nn::Graph model_by_name(std::string_view name, const ImageOptions& options = {});

}  // namespace tutti::models
