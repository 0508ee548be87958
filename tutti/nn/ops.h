/// What each layer of a Graph computes, as plain data: the vocabulary of nn::Graph, of which
/// ops_*.h have a part.
///
/// A walker (module builder, summary, cut for model parallel, exporter) takes the variant apart
/// with std::get_if or std::visit. Sizes that follow from the input are filled in when a layer is
/// applied. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/nn/ops_elementwise.h"
#include "tutti/nn/ops_images.h"
#include "tutti/nn/ops_sequences.h"
#include "tutti/nn/shape.h"

namespace tutti::nn {

namespace op {

/// Where a batch enters: [batch, shape...].
struct Input {
  Shape shape;
  DType dtype = DType::float32;  ///< int64 where an embedding reads it
};

/// Cross-correlation with zero padding: torch::nn::Conv2d.
struct Conv2d {
  int64_t in_channels = 0;   ///< from the input
  int64_t out_channels = 0;  ///< >= 1
  Size2d kernel = 1;         ///< >= 1
  int64_t stride = 1;        ///< >= 1
  Size2d padding = 0;        ///< zeros on each side, >= 0
  int64_t groups = 1;        ///< divides both channel counts
  bool bias = true;
};

/// y = x W' + b on the last dimension: torch::nn::Linear.
struct Linear {
  int64_t in_features = 0;  ///< from the input
  int64_t units = 0;        ///< >= 1
  bool bias = true;
  /// > 0: weights begin normal with this deviation, the bias at 0. 0: as torch::nn::Linear begins.
  double initial_deviation = 0;
};

/// Numbers of tokens [length] to learned vectors [length, features]: torch::nn::Embedding.
struct Embedding {
  int64_t vocabulary = 1;        ///< >= 1: tokens are 0 to vocabulary - 1
  int64_t features = 1;          ///< >= 1
  double initial_deviation = 1;  ///< > 0, of the normal distribution that vectors begin with
};

/// y = x W' with the weight W of an Embedding: how alike x is to the vector of each token.
struct TiedLinear {
  int64_t vocabulary = 1;
  int64_t features = 1;
  double initial_deviation = 1;  ///< the Embedding's
};

/// Largest value of each window; padding counts as minus infinity.
struct MaxPool2d {
  int64_t kernel = 2;
  int64_t stride = 2;
  int64_t padding = 0;  ///< at most half the kernel
};

/// Mean of each window; padding counts as zeros.
struct AvgPool2d {
  int64_t kernel = 2;
  int64_t stride = 2;
  int64_t padding = 0;  ///< at most half the kernel
};

/// Means of a grid of this size laid over the image, whatever the image's size; cells overlap or
/// repeat where it does not divide: torch::nn::AdaptiveAvgPool2d.
struct AdaptiveAvgPool2d {
  Size2d size = 1;  ///< >= 1
};

/// Each pixel becomes times x times equal ones.
struct Upsample2d {
  int64_t times = 1;  ///< >= 1
};

/// Per channel: (x - mean) / sqrt(variance + epsilon) * weight + bias. Statistics are those of this
/// replica's part in training (of all replicas' parts when synchronized), the running ones in
/// evaluation.
struct BatchNorm2d {
  int64_t channels = 0;       ///< from the input
  double epsilon = 1e-5;      ///< > 0
  double momentum = 0.1;      ///< share of the new batch in the running statistics, in [0, 1]
  bool synchronized = false;  ///< nn::SyncBatchNorm
};

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension.
struct LayerNorm {
  int64_t features = 0;   ///< from the input
  double epsilon = 1e-5;  ///< > 0
};

/// Multi-head attention of a sequence [length, features] to itself: with q, k, v of each head,
/// softmax(q k' / sqrt(features / heads)) v, then a dense layer. Vaswani et al. 2017,
/// arXiv:1706.03762. Parameters are those of torch::nn::MultiheadAttention.
struct SelfAttention {
  int64_t features = 0;  ///< from the input
  int64_t heads = 1;     ///< >= 1, divides the features
};

/// What self-attention does between its dense layers. [length, 3 features], queries, keys and
/// values side by side, to [length, features]: of each head softmax(q k' / sqrt(features / heads))
/// v. Causal: places see themselves and those before them.
struct Attention {
  int64_t features = 0;  ///< a third of the input's
  int64_t heads = 1;     ///< >= 1, divides the features
  bool causal = false;
};

/// A learned first element before a sequence: [length, features] to [length + 1, features].
struct PrependToken {
  int64_t features = 0;  ///< from the input
};

/// A learned vector for each place of a sequence, added to it.
struct AddPosition {
  int64_t length = 0;    ///< from the input
  int64_t features = 0;  ///< from the input
};

/// Zeroes each element with this probability in training and scales the rest by 1 / (1 - p).
struct Dropout {
  double probability = 0.5;  ///< in [0, 1)
};

/// [1, h, w] to [times, h, w]; a view, nothing is copied.
struct RepeatChannels {
  int64_t times = 1;
};

/// x times the normal distribution's integral up to x.
struct Gelu {
  bool by_tanh = false;  ///< by GPT-2's formula: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
};

struct Relu {};             ///< max(x, 0)
struct Tanh {};             ///< hyperbolic tangent
struct GlobalAvgPool2d {};  ///< [c, h, w] to [c]
struct ToSequence {};       ///< [c, h, w] to [h * w, c]: a sequence of pixels, row by row
struct FirstOfSequence {};  ///< [length, features] to [features]
struct Flatten {};          ///< all dimensions of a sample to one
struct Softmax {};          ///< over the last dimension
struct Add {};              ///< two inputs of one shape
struct Concat {};           ///< one input or more, joined along their first dimension

}  // namespace op

using Op = std::variant<
    op::Input, op::Conv2d, op::Linear, op::Embedding, op::TiedLinear, op::MaxPool2d, op::AvgPool2d,
    op::AdaptiveAvgPool2d, op::Upsample2d, op::BatchNorm2d, op::LayerNorm, op::SelfAttention,
    op::Attention, op::PrependToken, op::AddPosition, op::Dropout, op::RepeatChannels, op::Relu,
    op::Gelu, op::Tanh, op::GlobalAvgPool2d, op::ToSequence, op::FirstOfSequence, op::Flatten,
    op::Softmax, op::Add, op::Concat, op::Sigmoid, op::LeakyRelu, op::Elu, op::Selu, op::Silu,
    op::HardSigmoid, op::HardSwish, op::Softplus, op::Mish, op::Relu6, op::LogSoftmax, op::Subtract,
    op::Multiply, op::Maximum, op::Minimum, op::Conv1d, op::ConvTranspose1d, op::MaxPool1d,
    op::AvgPool1d, op::GlobalAvgPool1d, op::GlobalMaxPool1d, op::Lstm, op::Gru, op::ConvTranspose2d,
    op::GroupNorm, op::Reshape, op::Permute, op::Slice, op::Lambda>;

/// "conv2d", "linear", ...: the name of the function that makes the layer.
std::string_view kind_of(const Op& op) noexcept;

/// A tensor that a layer owns.
struct Parameter {
  std::string name;       ///< within the layer: "weight", "running_mean"; "": that of the layer
  Shape shape;            ///< full shape; {} is a scalar
  bool trainable = true;  ///< false: a buffer
  bool frozen = false;    ///< stays as it is: without gradient, and in no optimizer
};

/// What a layer becomes on inputs of given shapes.
struct Resolved {
  Op op;  ///< sizes filled in
  Shape shape;
  std::vector<Parameter> parameters;
};

/// Infers shapes. Throws UsageError that says the layer (`name` may be empty), what it got and what
/// it expects.
Resolved resolve(const Op& op, const std::vector<Shape>& inputs, std::string_view name);

}  // namespace tutti::nn
