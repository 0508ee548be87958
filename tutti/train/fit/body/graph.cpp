// Forward, backward and update, of which the device makes one graph (StrategyOptions::step_graph).

#include <map>

#include "tutti/base/event.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/fit/detail/whole_body.h"

namespace tutti::detail {
namespace {

class Graph final : public LateBody {
 public:
  using LateBody::LateBody;

  void train(const BatchOfStep& of) override {
    if (has_none(of) || fit_.leaves_out(of.tally.totals)) return LateBody::train(of);
    const nn::SampleContext place(place_of(of));
    fit_.tell(of.replica, of.tally.totals);
    fit_.at_place(of.replica, of.epoch, of.batch, [&] { step(of); });
  }

 private:
  // What the host does of a step comes before it, since the device makes most steps by itself: the
  // targets are looked at by the shapes of outputs that were there before.
  void step(const BatchOfStep& of) {
    const Goals& goals = fit_.goals();
    const auto host = host_batch(of.batch.host_columns(of.replica), fit_.model().num_inputs, goals,
                                 fit_.label_weights());
    if (const auto& graph = fit_.model().graph)
      nn::detail::require_steps_of_inputs(*graph, host->parts.inputs);
    const auto there = device_batch(of.replica, host->parts);
    const bool weighted = there->parts.weights.defined();
    Tensors inputs = there->columns;
    if (!weighted) inputs.pop_back();
    Tensors& shapes = shapes_[of.batch.local_size(of.replica)];
    for (size_t i = 0; i < goals.size() && !shapes.empty(); ++i)
      goals[i].loss.kernel().check_targets(goals[i].output(shapes), host->parts.targets[i]);
    const TimedEvent timed("train.step", {"replica", int64_t{of.replica.rank()}});
    const Tensors made = fit_.optimizer().minimize(of.replica, inputs, [&](at::TensorList in) {
      const size_t first = host->parts.inputs.size();
      return loss_of(of, host->parts,
                     {.inputs = in.slice(0, first),
                      .targets = in.slice(first, goals.size()),
                      .weights = weighted ? in.back() : at::Tensor()},
                     shapes);
    });
    const auto split = made.begin() + std::ssize(goals);
    expect_figures(of, host, {made.begin(), split}, {split, made.end()});
  }

  StepLoss loss_of(const BatchOfStep& of, const BatchParts& host, const BatchParts& there,
                   Tensors& shapes) const {
    const Goals& goals = fit_.goals();
    const AddedLosses refused(
        "with step_graph the device repeats a step, and what forward() adds "
        "is not read; train without, or use train_step");
    const Tensors outputs = fit_.compiled().outputs(of.forward, there.inputs);
    shapes.clear();
    for (const at::Tensor& output : outputs)
      shapes.push_back(at::empty(output.sizes(), output.options().device(at::kMeta)));
    Tensors all = losses_on_device(goals, outputs, host, there);
    const at::Tensor loss =
        scaled_loss(goals, all, there, 1.0 / static_cast<double>(of.batch.group_size(1)));
    if (!loss.requires_grad()) Fit::throw_without_graph();
    leave_out_if_bad(of, all);
    all.insert(all.end(), outputs.begin(), outputs.end());
    return {.loss = loss, .outputs = std::move(all)};
  }

  std::map<int64_t, Tensors> shapes_;  // of a step's outputs, by samples
};

}  // namespace

std::unique_ptr<StepBody> make_graph_body(Fit& fit) { return std::make_unique<Graph>(fit); }

}  // namespace tutti::detail
