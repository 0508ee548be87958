/// Trains a .pt2 file as eager PyTorch was trained that wrote the reference beside it, and says how
/// far they are apart. tests/tables/exported/make_exported.py says what is in a reference;
/// tools/zoo_export writes such too.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti::test {

struct AgainstEager {
  double loss = 0;        ///< largest differences, each relative to the largest of its tensor
  double outputs = 0;     ///< of the first step
  double gradients = 0;   ///< of the first step; relative to the largest of all
  double final = 0;       ///< parameters and buffers after the last step
  double evaluation = 0;  ///< outputs in evaluation mode after it; 0 where the reference has none
  int tensors = 0;        ///< that were compared
  bool equal = true;      ///< bit for bit, all of them
  std::vector<std::string> missing;  ///< tensors of the reference that the module has not

  double worst() const { return std::max({loss, outputs, gradients, final, evaluation}); }
  std::string json() const;  ///< on one line
};

/// The evaluation file of `net` is net.eval.pt2 beside it, where that is.
AgainstEager against_eager(const std::filesystem::path& net,
                           const std::filesystem::path& reference);

}  // namespace tutti::test
