/// The cross-entropy of one row of logits, in plain memory; not for users. Thread rule: pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tutti::detail {

/// -log softmax(logits)[label]; with `gradient`, (softmax - one hot) * scale goes there.
inline double crossentropy_of_row(const float* logits, int64_t classes, int64_t label, float scale,
                                  float* gradient) {
  float largest = logits[0];
  for (int64_t c = 1; c < classes; ++c) largest = std::max(largest, logits[c]);
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) {
    const float e = std::exp(logits[c] - largest);
    if (gradient != nullptr) gradient[c] = e;
    sum += e;
  }
  if (gradient != nullptr) {
    const auto factor = static_cast<float>(static_cast<double>(scale) / sum);
    for (int64_t c = 0; c < classes; ++c) gradient[c] *= factor;
    gradient[label] -= scale;
  }
  return std::log(sum) + static_cast<double>(largest) - static_cast<double>(logits[label]);
}

}  // namespace tutti::detail
