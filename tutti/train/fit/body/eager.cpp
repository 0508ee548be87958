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
    BatchParts parts =
        parts_of(columns, fit_.model().num_inputs, compiled.goals, fit_.label_weights());
    Tensors outputs, losses;
    const at::Tensor loss = [&] {
      const TimedEvent timed("train.forward", {"replica", int64_t{of.replica.rank()}});
      if (compiled.train_step) return own_loss(of, parts, by, outputs, losses);
      const AddedLosses added;
      outputs = compiled.outputs(of.forward, parts.inputs);
      const at::Tensor more = added_by_forward(compiled.goals, added, parts);
      parts.added = added.metrics(parts.inputs[0].size(0));
      if (!more.defined()) return totals.add_losses(compiled.goals, outputs, parts, by);
      const Goal& goal = compiled.goals[0];
      losses = {goal.loss.kernel().per_sample(goal.output(outputs), parts.targets[0]) + more};
      return known_loss(of, parts, by, losses);
    }();
    const int64_t samples = of.batch.local_size(of.replica);
    if (samples > 0 && !loss.requires_grad()) Fit::throw_without_graph();
    totals.samples += samples;
    if (samples > 0) totals.add_metrics(compiled.goals, outputs, parts);
    fit_.look_at_loss(of, {parts, outputs, losses}, totals);
    return loss;
  }

  at::Tensor own_loss(const BatchOfStep& of, BatchParts& parts, const Divisors& by,
                      Tensors& outputs, Tensors& losses) {
    const Compiled& compiled = fit_.compiled();
    StepOutcome made =
        call_step(compiled, compiled.train_step, *fit_.model().modules.module(of.replica),
                  of.forward, parts, parts.added);
    outputs = std::move(made.outputs);
    losses = {made.losses};
    return known_loss(of, parts, by, losses);
  }

  at::Tensor known_loss(const BatchOfStep& of, const BatchParts& parts, const Divisors& by,
                        const Tensors& losses) {
    of.tally.totals.add_known(losses[0].detach(), parts.weights);
    return scaled_loss(fit_.goals(), losses, parts, 1.0 / by.samples);
  }
};

}  // namespace

std::unique_ptr<StepBody> make_eager_body(Fit& fit) { return std::make_unique<Eager>(fit); }

}  // namespace tutti::detail
