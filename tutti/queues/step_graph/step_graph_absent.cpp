// Compiled in place of step_graph_cuda.cpp where CUDA's headers are not.
#include "tutti/base/error.h"
#include "tutti/queues/step_graph/step_graph.h"

namespace tutti {

bool step_graph_available() noexcept { return false; }

std::unique_ptr<StepGraph> make_step_graph(const DeviceQueue&) {
  throw UsageError(
      "step_graph: this build has none: it was configured without LibTorch's CUDA or the headers "
      "of "
      "CUDA's run-time library\n  tools/setup --cuda installs both; configure again, or leave out "
      "--step-graph");
}

}  // namespace tutti
