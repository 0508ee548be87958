#include "tutti/base/event.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/fit/detail/whole_body.h"

namespace tutti::detail {

at::Tensor LateBody::loss(const BatchOfStep& of, Tensors columns, const Divisors& by) {
  const Compiled& compiled = fit_.compiled();
  const Goals& goals = compiled.goals;
  const auto host =
      host_batch(std::move(columns), fit_.model().num_inputs, goals, fit_.label_weights());
  if (const auto& graph = fit_.model().graph)
    nn::detail::require_steps_of_inputs(*graph, host->parts.inputs);
  const auto there = device_batch(of.replica, host->parts);
  std::vector<double> scales;
  for (size_t i = 0; i < goals.size(); ++i)
    scales.push_back(by.scale(goals, i, host->parts.targets[i]));
  const TimedEvent timed("train.forward", {"replica", int64_t{of.replica.rank()}});
  Tensors outputs, losses;
  AddedMetrics metrics;
  if (compiled.train_step) {
    StepOutcome made =
        call_step(compiled, compiled.train_step, *fit_.model().modules.module(of.replica),
                  of.forward, there->parts, metrics);
    outputs = std::move(made.outputs);
    losses = {std::move(made.losses)};
  } else {
    const AddedLosses added;
    outputs = compiled.outputs(of.forward, there->parts.inputs);
    losses = losses_on_device(goals, outputs, host->parts, there->parts);
    if (const at::Tensor more = added_by_forward(goals, added, there->parts); more.defined())
      losses[0] = losses[0] + more;
    metrics = added.metrics(there->parts.inputs[0].size(0));
  }
  at::Tensor loss = scaled_loss(goals, losses, there->parts, scales);
  if (of.batch.local_size(of.replica) > 0 && !loss.requires_grad()) Fit::throw_without_graph();
  leave_out_if_bad(of, losses);
  expect_figures(of, host, losses, outputs, metrics);
  return loss;
}

void LateBody::leave_out_if_bad(const BatchOfStep& of, const Tensors& losses) const {
  if (fit_.leaves_bad_steps_out())
    fit_.optimizer().leave_out_if(of.replica, any_not_finite(losses));
}

void LateBody::expect_figures(const BatchOfStep& of, std::shared_ptr<const OwnBatch> host,
                              const Tensors& losses, const Tensors& outputs,
                              const AddedMetrics& added) {
  of.tally.expect(of.batch.step() / fit_.options().accumulate);
  read_later(
      of.tally.late, fit_.goals(), std::move(host), losses, outputs, added,
      [this, replica = of.replica, &epoch = of.epoch, batch = of.batch, &tally = of.tally](
          Figures figures) { read_figures(replica, epoch, batch, std::move(figures), tally); });
}

void LateBody::read_figures(ReplicaContext replica, const Epoch& epoch,
                            const DistributedBatch& batch, Figures figures, Tally& tally) {
  if (fit_.says_what_is_bad(replica, batch, tally.totals) && !figures.finite(fit_.goals()))
    fit_.found_not_finite(replica, epoch, batch,
                          {figures.batch->parts, figures.outputs, figures.losses}, tally.totals);
  tally.come([this, replica, &epoch, batch, figures = std::move(figures), &tally] {
    fit_.at_place(replica, epoch, batch, [&] { figures.add_to(tally.totals, fit_.goals()); });
  });
}

std::unique_ptr<StepBody> make_late_body(Fit& fit) { return std::make_unique<LateBody>(fit); }

}  // namespace tutti::detail
