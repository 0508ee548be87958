#include "tutti/sync/detail/vector_math.h"

#include <ATen/ATen.h>

#include <mutex>

namespace tutti::detail {

void settle_vector_math() {
  static std::once_flag once;
  std::call_once(once, [] {
    const c10::InferenceMode no_graph;
    at::ones({1}, at::kFloat).sqrt_();
    at::ones({1}, at::kDouble).sqrt_();
  });
}

}  // namespace tutti::detail
