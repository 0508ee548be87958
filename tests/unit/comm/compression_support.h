/// Support for tests of compression: gradients from a seed, and replicas that take turns.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "tutti/comm/compression/coder.h"

namespace tutti::test {

using Floats = std::vector<float>;

/// n values whose sums round, the same for the same (seed, replica, step).
inline Floats gradient_of(int64_t n, uint32_t seed, int replica, int step) {
  std::mt19937 random(seed * 7919u + static_cast<uint32_t>(replica) * 131u +
                      static_cast<uint32_t>(step));
  Floats values(static_cast<size_t>(n));
  for (float& value : values)
    value = static_cast<float>((static_cast<double>(random()) / 4294967296.0 - 0.5) / 16);
  return values;
}

/// A bucket of matrices behind each other, as one replica sees it.
struct CodedBucket {
  std::vector<std::pair<int64_t, int64_t>> matrices;
  Floats values;
  std::vector<detail::CodedState> states;
  std::unique_ptr<detail::BucketCoder> coder;

  CodedBucket(const Compression& compression, std::vector<std::pair<int64_t, int64_t>> matrices_in,
              const ReductionShape& shape)
      : matrices(std::move(matrices_in)), states(matrices.size()) {
    int64_t n = 0;
    for (const auto& [rows, columns] : matrices) n += rows * columns;
    values.resize(static_cast<size_t>(n));
    renew(compression, shape);
  }

  /// A coder made anew, with the states that are there.
  void renew(const Compression& compression, const ReductionShape& shape) {
    std::vector<detail::CodedTensor> tensors;
    float* at = values.data();
    for (size_t i = 0; i < matrices.size(); ++i) {
      const auto [rows, columns] = matrices[i];
      tensors.push_back({static_cast<int>(i), at, rows, columns});
      at += rows * columns;
    }
    coder = detail::make_coder(compression, span_of(std::span(values)), tensors, states, shape);
  }

  std::vector<uint8_t> all_used() const { return std::vector<uint8_t>(matrices.size(), 1); }
};

/// One compressed sum over replicas that take turns; used[r] says what replica r takes part with.
/// Returns the bytes that each sent.
inline int64_t sum_in_turn(std::vector<std::unique_ptr<CodedBucket>>& replicas,
                           const ReductionShape& shape,
                           const std::vector<std::vector<uint8_t>>& used = {}) {
  const auto reduction = cross_device_by_name("all_reduce")();
  std::vector<detail::Exchange> parts;
  for (size_t r = 0; r < replicas.size(); ++r)
    parts.push_back(replicas[r]->coder->begin(used.empty() ? replicas[r]->all_used() : used.at(r)));
  int64_t bytes = 0;
  while (parts[0].kind != detail::Exchange::Kind::none) {
    bytes += detail::wire_bytes(parts[0], static_cast<int>(replicas.size()));
    detail::exchange_in_turn(parts, *reduction, shape);
    for (size_t r = 0; r < replicas.size(); ++r) parts[r] = replicas[r]->coder->next();
  }
  return bytes;
}

inline std::vector<std::unique_ptr<CodedBucket>> make_replicas(
    const Compression& compression, const std::vector<std::pair<int64_t, int64_t>>& matrices,
    const ReductionShape& shape) {
  std::vector<std::unique_ptr<CodedBucket>> replicas;
  for (int r = 0; r < shape.replicas(); ++r)
    replicas.push_back(std::make_unique<CodedBucket>(compression, matrices, shape));
  return replicas;
}

}  // namespace tutti::test
