// Which elements of a parameter a piece of it has.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/sync/piece.h"

namespace tutti::parallel {
namespace {

TEST(Pieces, OfStackedPartsAreCutFromEach) {
  const at::Tensor whole = at::arange(12).view({6, 2});
  const Piece piece{.whole = {6, 2}, .axis = 0, .begin = 1, .size = 1, .stacked = 3};
  EXPECT_TRUE(at::equal(piece_of(whole, piece), at::tensor({2, 3, 6, 7, 10, 11}).view({3, 2})));
}

}  // namespace
}  // namespace tutti::parallel
