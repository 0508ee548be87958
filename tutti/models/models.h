/// The zoo: networks as nn::Graph, by function or by name.
///
/// They give logits [batch, classes] for sparse_categorical_crossentropy. Those that torchvision
/// has carry its names of parameters and buffers ("layer1.0.conv1.weight"), so that a PyTorch state
/// dict loads by name; initial values are the defaults of torch's layers.
/// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::models {

/// Of networks for doodles, float32 [batch, 1, 28, 28] as quickdraw() delivers them.
struct ImageOptions {
  int64_t classes = 10;        ///< >= 1: logits per sample
  nn::Shape input{1, 28, 28};  ///< of one sample: {channels, height, width}
  /// Times the units of every hidden layer, rounded, 1 or more of them; finite and above 0.
  double width = 1;
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

/// LeNet-5, LeCun et al. 1998, doi:10.1109/5.726791: conv 5x5 (6 channels, padding 2), tanh,
/// average pool, conv 5x5 (16), tanh, average pool, dense 120, 84 and classes, with plain average
/// pools and all channels connected, as is usual today: 61,706 parameters. Height and width of 12
/// or more.
nn::Graph lenet(ImageOptions options = {});

/// Of networks for photographs. Images of one channel get three equal ones. Smaller ones than a
/// network can take are enlarged by the smallest whole factor that serves; the summary shows it.
struct PhotoOptions {
  int64_t classes = 1000;
  nn::Shape input{3, 224, 224};  ///< one or three channels
  double width = 1;              ///< as in ImageOptions; 1 is the network of the paper
};

/// Krizhevsky 2014, arXiv:1404.5997: 61,100,840 parameters. Side of 63 or more, else enlarged.
nn::Graph alexnet(PhotoOptions options = {});

/// Simonyan and Zisserman 2014, arXiv:1409.1556, configuration A: 132,863,336 parameters, or
/// 132,868,840 with a batch norm after each convolution. Side of 32 or more, else enlarged.
nn::Graph vgg11(PhotoOptions options = {});
nn::Graph vgg11_bn(PhotoOptions options = {});

/// He et al. 2015, arXiv:1512.03385: 11,689,512 and 25,557,032 parameters; the latter halves images
/// in its 3x3 convolutions, as torchvision's does. Never enlarges.
nn::Graph resnet18(PhotoOptions options = {});
nn::Graph resnet50(PhotoOptions options = {});

struct InceptionOptions {
  int64_t classes = 1000;
  nn::Shape input{3, 299, 299};
  double width = 1;
  /// A second output "auxiliary" beside "output": logits of the classifier half way, whose loss
  /// has a weight of 0.3 in the paper.
  bool auxiliary = false;
};

/// Inception v3, Szegedy et al. 2015, arXiv:1512.00567: 23,834,568 parameters, or 27,161,264 with
/// the auxiliary classifier. Side of 75 or more, with the auxiliary classifier 299, else enlarged.
nn::Graph inception_v3(InceptionOptions options = {});

struct VitOptions {
  int64_t classes = 10;
  nn::Shape input{1, 28, 28};  ///< {channels, height, width}, multiples of `patch`
  int64_t patch = 7;           ///< height and width of the squares that become a sequence
  int64_t layers = 4;          ///< >= 1
  int64_t heads = 4;           ///< divides `hidden`
  int64_t hidden = 64;         ///< features of a place in the sequence
  int64_t mlp = 128;           ///< units between the dense layers of a block
  double dropout = 0;
};

/// A transformer for images, Dosovitskiy et al. 2020, arXiv:2010.11929. By default a small one for
/// doodles; torchvision's vit_b_16, 86,567,656 parameters, is {.classes = 1000,
/// .input = {3, 224, 224}, .patch = 16, .layers = 12, .heads = 12, .hidden = 768, .mlp = 3072}.
nn::Graph vit(VitOptions options = {});

struct UnetOptions {
  int64_t classes = 2;         ///< >= 1: kinds of pixels
  nn::Shape input{3, 64, 64};  ///< {channels, height, width}, which 2^levels divides
  int64_t channels = 32;       ///< >= 1, of the first level; twice as many in each one below
  int64_t levels = 3;          ///< 1 to 16: times that the image is halved
};

/// U-Net, Ronneberger et al. 2015, arXiv:1505.04597, which says of each pixel what it belongs to:
/// logits [batch, height, width, classes] for sparse_categorical_crossentropy with targets [batch,
/// height, width]. As is usual today its convolutions keep the size of the image and have batch
/// norms: 1,927,042 parameters by default. Not one of model_by_name(), whose networks give one
/// kind for a sample.
nn::Graph unet(UnetOptions options = {});

/// Names that model_by_name() knows, sorted.
const std::vector<std::string>& model_names();

/// All of them, in words: "mlp, wide, ... or vit; linear_regression for tables".
std::string model_words();

/// Those that can be made so: what else takes samples of that shape.
std::vector<std::string> models_for(const ImageOptions& options);

/// mlp and wide take samples of any shape, a table's rows too ({features}); of one class they
/// predict a number. linear_regression takes its features from the input shape, and no classes.
/// `width` scales the hidden layers of all others; of vit, whole multiples of its heads. Unknown
/// names throw UsageError with the nearest known one.
nn::Graph model_by_name(std::string_view name, const ImageOptions& options = {});

}  // namespace tutti::models
