/// Pieces of parameters, and their initial values: what a rank has of a parameter of the whole
/// model.
///
/// An initial value is a function of (seed, name of the parameter, place of the element in the
/// whole parameter). So a rank makes the piece that it has and nothing else, and the model is the
/// same however it is dealt. Numbers are Philox's (docs/design/random_numbers.md), the same on
/// every platform. Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace tutti::parallel {

/// Elements [begin, begin + size) along `axis` of each of `stacked` equal parts of a parameter; all
/// of them: begin 0, size that of a part.
struct Piece {
  std::vector<int64_t> whole;  ///< shape of the whole parameter
  int64_t axis = 0;
  int64_t begin = 0;
  int64_t size = 0;
  /// Equal parts along the axis that are cut alike: 3 where queries, keys and values lie one below
  /// the other.
  int64_t stacked = 1;

  /// Of the piece as a tensor: `whole` with stacked * size along the axis.
  std::vector<int64_t> shape() const;
};

/// The piece of a tensor of shape `piece.whole`; a copy.
at::Tensor piece_of(const at::Tensor& whole, const Piece& piece);

/// What initial values are drawn from.
struct Distribution {
  enum class Kind : uint8_t { zeros, uniform, normal };
  Kind kind = Kind::zeros;
  double scale = 0;  ///< uniform in [-scale, scale]; the deviation of a normal one around 0
};

/// The key of the parameter of that name in the whole model: "mlp.up.weight".
uint64_t parameter_key(uint64_t seed, std::string_view name);

/// Overwrites `parameter`, of shape piece.shape() and a floating dtype, with the initial values of
/// the piece. Normal values are sums of twelve uniform ones, as ps::NormalRows has them: within 6
/// deviations.
void fill_initial(const at::Tensor& parameter, const Piece& piece, uint64_t key,
                  const Distribution& distribution);

}  // namespace tutti::parallel
