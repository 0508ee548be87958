/// Operators of nn::Graph on sequences [length, features], beside those in ops.h, which says how
/// they are read. Thread rule: plain values.
#pragma once

#include <cstdint>

namespace tutti::nn::op {

/// Cross-correlation along a sequence with zero padding: torch::nn::Conv1d on its features, as
/// Keras's Conv1D orders them.
struct Conv1d {
  int64_t in_channels = 0;   ///< from the input: its features
  int64_t out_channels = 0;  ///< >= 1
  int64_t kernel = 1;        ///< >= 1
  int64_t stride = 1;        ///< >= 1
  int64_t padding = 0;       ///< zeros at each end, >= 0
  int64_t groups = 1;        ///< divides both channel counts
  bool bias = true;
};

/// The gradient of a Conv1d: a sequence of (length - 1) stride - 2 padding + kernel +
/// output_padding places. torch::nn::ConvTranspose1d.
struct ConvTranspose1d {
  int64_t in_channels = 0;     ///< from the input
  int64_t out_channels = 0;    ///< >= 1
  int64_t kernel = 1;          ///< >= 1
  int64_t stride = 1;          ///< >= 1
  int64_t padding = 0;         ///< taken away at each end, from 0 to below the kernel
  int64_t output_padding = 0;  ///< places more at the end, below the stride
  bool bias = true;
};

/// Largest value of each window of places; padding counts as minus infinity.
struct MaxPool1d {
  int64_t kernel = 2;
  int64_t stride = 2;
  int64_t padding = 0;  ///< at most half the kernel
};

/// Mean of each window of places; padding counts as zeros.
struct AvgPool1d {
  int64_t kernel = 2;
  int64_t stride = 2;
  int64_t padding = 0;  ///< at most half the kernel
};

struct GlobalAvgPool1d {};  ///< [length, features] to [features]: the mean of all places
struct GlobalMaxPool1d {};  ///< [length, features] to [features]: the largest of all places

/// Long short-term memory. Hochreiter and Schmidhuber 1997; parameters and equations are those of
/// torch::nn::LSTM, from a state of zeros.
///
/// A second input says which steps there are: [length], of each 1, or 0 where it is padded; or [1],
/// how many there are at the begin. A step that there is not leaves the state as it is, and gives
/// zeros; whatever stands there changes nothing.
struct Lstm {
  int64_t features = 0;        ///< from the input
  int64_t units = 1;           ///< >= 1
  int64_t layers = 1;          ///< >= 1, each on what the one before gives
  bool bidirectional = false;  ///< one forward and one backward, side by side: 2 units features
  bool sequences = false;      ///< gives all steps [length, ...]; else the last state of each
                               ///< direction
};

/// Gated recurrent unit. Cho et al. 2014, arXiv:1406.1078; parameters and equations are those of
/// torch::nn::GRU, which Keras calls reset_after. Steps as Lstm has them.
struct Gru {
  int64_t features = 0;        ///< from the input
  int64_t units = 1;           ///< >= 1
  int64_t layers = 1;          ///< >= 1
  bool bidirectional = false;  ///< 2 units features
  bool sequences = false;      ///< gives all steps
};

}  // namespace tutti::nn::op
