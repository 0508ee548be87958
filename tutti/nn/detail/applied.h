/// Layers as a file has them, applied. Not for users. Thread rule: plain values.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti::nn::detail {

struct Applied {
  Op op;
  std::string name;
  std::shared_ptr<const void> layer;  ///< equal for applications of one layer; null: of none
  std::vector<Value> inputs;
  std::vector<std::string> frozen;  ///< of its parameters

  /// Throws UsageError as a layer does.
  Value value() const;
};

/// Words joined by dots.
bool is_layer_name(std::string_view name);

}  // namespace tutti::nn::detail
