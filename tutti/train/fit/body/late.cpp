#include "tutti/base/event.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/fit/detail/whole_body.h"

namespace tutti::detail {

at::Tensor LateBody::loss(const BatchOfStep& of, Tensors columns, const Divisors& by) {
  const Compiled& compiled = fit_.compiled();
  const Goals& goals = compiled.goals;
  const auto host =
      host_batch(std::move(columns), fit_.model().num_inputs, goals, fit_.options().class_weight);
  const auto there = device_batch(of.replica, host->parts);
  std::vector<double> scales;
  for (size_t i = 0; i < goals.size(); ++i)
    scales.push_back(by.scale(goals, i, host->parts.targets[i]));
  const TimedEvent timed("train.forward", {"replica", int64_t{of.replica.rank()}});
  const Tensors outputs = compiled.outputs(of.forward, there->parts.inputs);
  const Tensors losses = losses_on_device(goals, outputs, host->parts, there->parts);
  at::Tensor loss = scaled_loss(goals, losses, there->parts.weights, scales);
  if (of.batch.local_size(of.replica) > 0 && !loss.requires_grad()) Fit::throw_without_graph();
  leave_out_if_bad(of, losses);
  expect_figures(of, host, losses, outputs);
  return loss;
}

void LateBody::leave_out_if_bad(const BatchOfStep& of, const Tensors& losses) const {
  if (fit_.leaves_bad_steps_out())
    fit_.optimizer().leave_out_if(of.replica, any_not_finite(losses));
}

void LateBody::expect_figures(const BatchOfStep& of, std::shared_ptr<const OwnBatch> host,
                              const Tensors& losses, const Tensors& outputs) {
  of.tally.expect(of.batch.step() / fit_.options().accumulate);
  read_later(
      of.tally.late, fit_.goals(), std::move(host), losses, outputs,
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
