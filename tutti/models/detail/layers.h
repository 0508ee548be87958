/// What several networks of the zoo are made of. Not for users. Thread rule: pure functions.
#pragma once

#include <string>

#include "tutti/nn/graph.h"

namespace tutti::models::detail {

/// `units` times a network's width, rounded, at least 1. Throws UsageError unless the width is
/// finite and above 0.
int64_t scaled(int64_t units, double width);

/// Three channels, and height and width of `least_side` or more: enlarged by the smallest whole
/// factor that serves.
nn::Value photo(const nn::Value& image, int64_t least_side);

/// A convolution without bias, named `conv`, and a batch norm, named `norm`.
nn::Value conv_norm(const nn::Value& x, const nn::Layer& convolution, const std::string& conv,
                    const std::string& norm, nn::BatchNormOptions options = {});

}  // namespace tutti::models::detail
