/// Initial values of pieces of parameters (sync/piece.h).
///
/// One is a function of (seed, name of the parameter, place of the element in the whole parameter).
/// So a rank makes the piece that it has and nothing else, and the model is the same however it is
/// dealt. Numbers are Philox's (docs/design/random_numbers.md), the same on
/// every platform. Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string_view>

#include "tutti/sync/piece.h"

namespace tutti::parallel {

using tutti::Piece;
using tutti::piece_of;

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
