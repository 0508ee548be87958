#include "tutti/sync/piece.h"

#include <ATen/core/grad_mode.h>

namespace tutti {
namespace {

/// A view of a whole parameter: the elements of the piece, stacked parts along an axis of their
/// own.
at::Tensor elements_of(const at::Tensor& whole, const Piece& piece) {
  auto parts = whole.sizes().vec();
  const auto axis = parts.begin() + piece.axis;
  *axis /= piece.stacked;
  parts.insert(axis, piece.stacked);
  return whole.view(parts).narrow(piece.axis + 1, piece.begin, piece.size);
}

}  // namespace

std::vector<int64_t> Piece::shape() const {
  auto shape = whole;
  if (!shape.empty()) shape[static_cast<size_t>(axis)] = stacked * size;
  return shape;
}

at::Tensor piece_of(const at::Tensor& whole, const Piece& piece) {
  if (piece.whole.empty()) return whole.clone();
  return elements_of(whole.contiguous(), piece)
      .clone(at::MemoryFormat::Contiguous)
      .view(piece.shape());
}

void put_piece(const at::Tensor& whole, const Piece& piece, const at::Tensor& part) {
  const at::NoGradGuard no_grad;
  if (piece.whole.empty()) {
    whole.copy_(part);
    return;
  }
  const at::Tensor elements = elements_of(whole, piece);
  elements.copy_(part.reshape(elements.sizes()));
}

}  // namespace tutti
