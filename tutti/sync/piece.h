/// Piece: what a rank has of a parameter of the whole model.
///
/// Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tutti {

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

/// Writes a piece of it into a tensor of shape `piece.whole`.
void put_piece(const at::Tensor& whole, const Piece& piece, const at::Tensor& part);

}  // namespace tutti
