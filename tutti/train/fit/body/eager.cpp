// On the CPU: figures of a batch are there when its loss is.

#include "tutti/base/event.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/fit/detail/whole_body.h"

namespace tutti::detail {
namespace {

class Eager final : public WholeBody {
 public:
  using WholeBody::WholeBody;

 private:
  at::Tensor loss(const BatchOfStep& of, Tensors columns, const Divisors& by) override {
    const Compiled& compiled = fit_.compiled();
    Totals& totals = of.tally.totals;
    const BatchParts parts =
        parts_of(columns, fit_.model().num_inputs, compiled.goals, fit_.options().class_weight);
    Tensors outputs;
    const at::Tensor loss = [&] {
      const TimedEvent timed("train.forward", {"replica", int64_t{of.replica.rank()}});
      outputs = compiled.outputs(of.forward, parts.inputs);
      return totals.add_losses(compiled.goals, outputs, parts, by);
    }();
    const int64_t samples = of.batch.local_size(of.replica);
    if (samples > 0 && !loss.requires_grad()) Fit::throw_without_graph();
    totals.samples += samples;
    if (samples > 0) totals.add_metrics(compiled.goals, outputs, parts);
    fit_.look_at_loss(of, {parts, outputs, {}}, totals);
    return loss;
  }
};

}  // namespace

std::unique_ptr<StepBody> make_eager_body(Fit& fit) { return std::make_unique<Eager>(fit); }

}  // namespace tutti::detail
