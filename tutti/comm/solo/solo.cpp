#include "tutti/comm/solo/solo.h"

#include "tutti/base/array.h"
#include "tutti/base/host.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/engine/detail/failures.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti {
namespace {

class SoloEngine final : public Engine {
 public:
  std::string_view name() const noexcept override { return "solo"; }
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  const ReductionShape& reduction_shape() const noexcept override { return shape_; }
  bool one_process() const noexcept override { return true; }
  bool shares_memory() const noexcept override { return true; }

  Ticket submit(std::span<const Operation> batch) override {
    for (const auto& operation : batch) run(operation);
    return done_;
  }

  void progress(Ticket /*ticket*/, const Deadline& /*deadline*/) override { check(); }

  bool poll(Ticket /*ticket*/) override {
    check();
    return true;
  }

  void nudge() override { check(); }

  void run(const Operation& operation) override {
    check();
    ++done_;
    const MemorySpan& from = operation.input;
    const MemorySpan& to = operation.output;
    switch (operation.collective) {
      case Collective::all_reduce:
      case Collective::reduce: reduce_alone(operation, to.data); break;
      case Collective::reduce_scatter: reduce_alone(operation, from.data); break;
      case Collective::all_gather:
      case Collective::scatter:
      case Collective::gather:
      case Collective::all_to_all: detail::copy_bytes(to.data, from.data, to.num_bytes()); break;
      case Collective::broadcast:
      case Collective::barrier: break;
      case Collective::send:
      case Collective::recv:
        throw UsageError(
            fmt::format("{}, rank 0 of 1: there is no other rank", name_of(operation.collective)));
    }
  }

  void abort(FailureKind kind, const std::string& reason) noexcept override {
    failure_.keep(kind, reason);
  }

  std::shared_ptr<Engine> split(int color, int /*key*/, Millis /*limit*/) override {
    check();
    return color < 0 ? nullptr : make_solo();
  }

  SharedParts allocate(int64_t bytes, Millis /*limit*/) override {
    check();
    check_memory_for(bytes, "allocate, rank 0 of 1");
    const Array memory = Array::zeros(DType::uint8, {bytes});
    return {{memory.span()}, memory.owner()};
  }

 private:
  // Numbers stay as they are, but for logical operations and partial results.
  void reduce_alone(const Operation& operation, const void* input) {
    const MemorySpan& to = operation.output;
    const DType dtype = detail::dtype_of(operation);
    if (operation.partial)
      reduce_partial(dtype, operation.reduce, shape_, {&input, 1}, to.data, to.num_elements);
    else
      reduce_inputs(dtype, operation.reduce, shape_, {&input, 1}, to.data, to.num_elements);
  }

  void check() const {
    failure_.rethrow([] { return std::string("rank 0 of 1: "); });
  }

  const ReductionShape shape_ = ReductionShape::flat(1);
  Ticket done_ = 0;
  detail::FirstFailure failure_;
};

}  // namespace

std::shared_ptr<Engine> make_solo() { return std::make_shared<SoloEngine>(); }

}  // namespace tutti
