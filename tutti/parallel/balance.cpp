#include "tutti/parallel/balance.h"
namespace tutti::parallel {
std::vector<size_t> balanced(std::span<const LayerCost> layers, int stages, LinkCost, int64_t) {
  std::vector<size_t> b;
  for (int i = 0; i < stages; ++i) b.push_back(layers.size() * i / stages);
  return b;
}
}  // namespace tutti::parallel
