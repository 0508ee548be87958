// Step graphs on the fake CUDA, in place of the library's.
#include "tutti/queues/step_graph/step_graph.h"

#include "tests/support/fake_cuda/fake_cuda.h"

namespace tutti {
namespace {

class FakeStepGraph final : public StepGraph {
 public:
  explicit FakeStepGraph(const DeviceQueue& queue) : queue_(queue) {}

  void capture(const std::function<void()>& work) override {
    graph_.capture(queue_.device().index(), static_cast<int>(queue_.stream().id()), work);
  }
  void replay() override { graph_.replay(); }

 private:
  DeviceQueue queue_;
  test::fake_cuda::Graph graph_;
};

}  // namespace

bool step_graph_available() noexcept { return test::fake_cuda::available(); }

std::unique_ptr<StepGraph> make_step_graph(const DeviceQueue& queue) {
  return std::make_unique<FakeStepGraph>(queue);
}

}  // namespace tutti
