// Compiled instead of the fake CUDA where there cannot be one.
#include "tests/support/fake_cuda/fake_cuda.h"

namespace tutti::test::fake_cuda {
namespace {

[[noreturn]] void refuse() {
  throw std::logic_error(
      "no fake CUDA: it needs LibTorch 2.13 or newer, without a CUDA of its own");
}

}  // namespace

bool available() { return false; }
void set_devices(int) { refuse(); }
int devices() { return 0; }
void set_order(Order, uint64_t) { refuse(); }
void reset() { refuse(); }
void run_all() { refuse(); }
Counts Counts::operator-(const Counts&) const { refuse(); }
Counts counts() { refuse(); }
std::vector<std::string> synchronous_operators() { refuse(); }
void leave_out_blocks(std::function<bool()>) { refuse(); }
void leave_out_records(std::function<bool()>) { refuse(); }
void stick(int, uint64_t) { refuse(); }
void unstick(int) { refuse(); }
struct Graph::Kept {};
Graph::Graph() { refuse(); }
Graph::~Graph() = default;
void Graph::capture(int, int, const std::function<void()>&) { refuse(); }
void Graph::replay() { refuse(); }
void set_memory(int, size_t) { refuse(); }
void fail_allocation(int, uint64_t) { refuse(); }

}  // namespace tutti::test::fake_cuda
