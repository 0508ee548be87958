// PowerSGD: a gradient matrix as the product of two thin ones. Vogels et al. 2019,
// arXiv:1905.13727.
//
// Glossary: M a replica's gradient and residual, m x n; Q the right factor of the last step, n x r;
// sums go over replicas.
//   P = sum of M Q          one step of a power iteration: the columns of P lean to the main
//                           directions of sum M; warm start: Q is the last step's
//   P' = orthonormal P      the same on all replicas, since P is
//   Q' = M^T P'             each replica's own
//   residual = M - P' Q'^T  what this replica does not send
//   result = P' (sum Q')^T  the sum over replicas of what each sends
// P and Q are stored as r rows of m and of n elements.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/detail/check.h"
#include "tutti/base/random.h"
#include "tutti/comm/compression/coders.h"
#include "tutti/extras/coders/detail/orthonormalise.h"

namespace tutti::detail {
namespace {

// A row whose length falls below this part of it when the others' directions are taken out was made
// of rounding errors: float32 has 6e-8.
constexpr float kNothingLeft = 1e-6f;

struct Factors {
  CodedTensor tensor;
  int64_t rank = 0;
  float* left = nullptr;   // P: rank rows of tensor.rows
  float* right = nullptr;  // Q': rank rows of tensor.columns
  bool used = false;
};

// Values differ between tensors and rows, and are the same on every replica and host.
Array first_factor(const Compression& compression, int tensor, int64_t rank, int64_t columns) {
  Array factor = Array::zeros(DType::float32, {rank, columns});
  RandomStream random(random_key(compression.seed, RandomPurpose::init,
                                 {static_cast<uint64_t>(tensor), static_cast<uint64_t>(columns)}));
  for (float& value : factor.as<float>()) value = 2 * random.uniform() - 1;
  return factor;
}

class PowerSgdCoder final : public BucketCoder {
 public:
  explicit PowerSgdCoder(CoderParts parts) : parts_(std::move(parts)) {
    int64_t left = 0, right = 0;
    for (const CodedTensor& tensor : parts_.tensors) {
      const int64_t rank = factor_rank(parts_.compression, tensor.rows, tensor.columns);
      factors_.push_back({.tensor = tensor, .rank = rank});
      left += rank * tensor.rows;
      right += rank * tensor.columns;
    }
    left_ = Array::zeros(DType::float32, {left});
    right_ = Array::zeros(DType::float32, {right});
    float *p = left_.as<float>().data(), *q = right_.as<float>().data();
    for (Factors& factors : factors_) {
      factors.left = p;
      factors.right = q;
      p += factors.rank * factors.tensor.rows;
      q += factors.rank * factors.tensor.columns;
    }
  }

  Exchange begin(std::span<const uint8_t> used) override {
    for (size_t i = 0; i < factors_.size(); ++i) {
      factors_[i].used = used[i] != 0;
      make_left(factors_[i]);
    }
    phase_ = Phase::left;
    return {.kind = Exchange::Kind::sum, .data = left_.span()};
  }

  Exchange next() override {
    TUTTI_CHECK(phase_ != Phase::idle, "next() without begin()");
    if (phase_ == Phase::left) {
      for (Factors& factors : factors_) make_right(factors);
      phase_ = Phase::right;
      return {.kind = Exchange::Kind::sum, .data = right_.span()};
    }
    for (Factors& factors : factors_) make_result(factors);
    phase_ = Phase::idle;
    return {};
  }

 private:
  enum class Phase : uint8_t { idle, left, right };

  void make_left(Factors& factors) {
    const auto& [tensor, rank, left, right, used] = factors;
    CodedState& state = parts_.state_of(tensor);
    const int64_t n = tensor.rows * tensor.columns;
    ready_residual(state, n);
    if (state.factor.num_elements() == 0)
      state.factor = first_factor(parts_.compression, tensor.tensor, rank, tensor.columns);
    if (used) code_kernels().add(tensor.values, state.residual.as<float>().data(), n);
    const float* factor = state.factor.as<float>().data();
    for (int64_t row = 0; row < tensor.rows; ++row)
      for (int64_t k = 0; k < rank; ++k)
        left[k * tensor.rows + row] =
            used ? code_kernels().dot(tensor.values + row * tensor.columns,
                                      factor + k * tensor.columns, tensor.columns)
                 : 0;
  }

  void make_right(Factors& factors) {
    const auto& [tensor, rank, left, right, used] = factors;
    orthonormalise(left, rank, tensor.rows);
    std::fill_n(right, rank * tensor.columns, 0.0f);
    if (!used) return;
    for (int64_t row = 0; row < tensor.rows; ++row)
      for (int64_t k = 0; k < rank; ++k)
        code_kernels().add_scaled(right + k * tensor.columns, tensor.values + row * tensor.columns,
                                  left[k * tensor.rows + row], tensor.columns);
    keep_residual(factors);
  }

  // A gradient that is not finite goes out as NaN; keeping it would spoil all later steps.
  void keep_residual(const Factors& factors) {
    const auto& [tensor, rank, left, right, used] = factors;
    float* const residual = parts_.state_of(tensor).residual.as<float>().data();
    bool finite = true;
    for (int64_t i = 0; i < rank * tensor.columns; ++i) finite &= std::isfinite(right[i]);
    if (!finite) {
      std::fill_n(residual, tensor.rows * tensor.columns, 0.0f);
      return;
    }
    std::copy_n(tensor.values, tensor.rows * tensor.columns, residual);
    for (int64_t row = 0; row < tensor.rows; ++row)
      for (int64_t k = 0; k < rank; ++k)
        code_kernels().add_scaled(residual + row * tensor.columns, right + k * tensor.columns,
                                  -left[k * tensor.rows + row], tensor.columns);
  }

  void make_result(Factors& factors) {
    const auto& [tensor, rank, left, right, used] = factors;
    std::fill_n(tensor.values, tensor.rows * tensor.columns, 0.0f);
    for (int64_t row = 0; row < tensor.rows; ++row)
      for (int64_t k = 0; k < rank; ++k)
        code_kernels().add_scaled(tensor.values + row * tensor.columns, right + k * tensor.columns,
                                  left[k * tensor.rows + row], tensor.columns);
    keep_factor(factors);
  }

  // Of length one, so that small gradients do not lose bits in the next product. A row that came to
  // nothing keeps what it was: it will find a direction when there is one.
  void keep_factor(const Factors& factors) {
    const int64_t columns = factors.tensor.columns;
    float* const factor = parts_.state_of(factors.tensor).factor.as<float>().data();
    for (int64_t k = 0; k < factors.rank; ++k) {
      const float* row = factors.right + k * columns;
      const float length = std::sqrt(code_kernels().dot(row, row, columns));
      if (!std::isfinite(length) || length == 0) continue;
      for (int64_t i = 0; i < columns; ++i) factor[k * columns + i] = row[i] / length;
    }
  }

  CoderParts parts_;
  std::vector<Factors> factors_;
  Array left_, right_;
  Phase phase_ = Phase::idle;
};

// Takes the directions of rows [0, k) out of row k, twice: the second time mends what cancellation
// left of the first.
void take_out(float* matrix, int64_t k, int64_t length) {
  float* const row = matrix + k * length;
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t j = 0; j < k; ++j) {
      const float* other = matrix + j * length;
      code_kernels().add_scaled(row, other, -code_kernels().dot(other, row, length), length);
    }
}

}  // namespace

void orthonormalise(float* matrix, int64_t count, int64_t length) {
  for (int64_t k = 0; k < count; ++k) {
    float* const row = matrix + k * length;
    const float before = std::sqrt(code_kernels().dot(row, row, length));
    take_out(matrix, k, length);
    const float after = std::sqrt(code_kernels().dot(row, row, length));
    if (!std::isfinite(before) || !std::isfinite(after)) {
      std::fill_n(row, length, std::numeric_limits<float>::quiet_NaN());
    } else if (after <= kNothingLeft * before) {
      std::fill_n(row, length, 0.0f);
    } else {
      for (int64_t i = 0; i < length; ++i) row[i] /= after;
    }
  }
}

std::unique_ptr<BucketCoder> make_power_sgd_coder(CoderParts parts) {
  return std::make_unique<PowerSgdCoder>(std::move(parts));
}

}  // namespace tutti::detail
