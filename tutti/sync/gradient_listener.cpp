#include "tutti/sync/detail/gradient_listener.h"

#include <algorithm>
#include <vector>

namespace tutti::detail {

TellingNode* only_source_of(const at::Tensor& loss) {
  using torch::autograd::Node;
  constexpr size_t kMostNodes = 32;  // a loss of a graph's outputs has one to a dozen
  std::vector<Node*> nodes{loss.grad_fn().get()};
  TellingNode* source = nullptr;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == nullptr || nodes.size() > kMostNodes) return nullptr;
    if (auto* const telling = dynamic_cast<TellingNode*>(nodes[i])) {
      if (source != nullptr) return nullptr;
      source = telling;
      continue;
    }
    const auto& edges = nodes[i]->next_edges();
    if (edges.empty()) return nullptr;  // a parameter, or another leaf
    for (const auto& edge : edges) {
      Node* const next = edge.function.get();
      if (next != nullptr && std::ranges::find(nodes, next) == nodes.end()) nodes.push_back(next);
    }
  }
  return source;
}

Listening::Listening(const at::Tensor& loss, GradientListener* listener) {
  if (listener != nullptr && loss.requires_grad()) source_ = only_source_of(loss);
  if (source_ != nullptr) source_->listener = listener;
}

Listening::~Listening() {
  if (source_ != nullptr) source_->listener = nullptr;
}

}  // namespace tutti::detail
