// A step whose batch comes in microbatches, and whose model may be on several ranks.

#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/losses/detail/samples.h"

namespace tutti::detail {
namespace {

/// Rows of a replica's part of a batch, one range a microbatch.
std::vector<data::Share> microbatches_of(const BatchOfStep& of) {
  const World& world = *of.epoch.world;
  const int64_t first_row = of.batch.first_row(of.replica);
  const int first = world.replica_of(of.replica.rank()) * world.microbatches;
  std::vector<data::Share> rows;
  for (int i = 0; i < world.microbatches; ++i) {
    const auto share = microbatch_of(of.batch.global_size(), world, first + i);
    rows.push_back({share.begin - first_row, share.end - first_row});
  }
  return rows;
}

class InParts final : public StepBody {
 public:
  explicit InParts(Fit& fit) : fit_(fit) {}

  void train(const BatchOfStep& of) override {
    Totals scratch;  // of ranks whose outputs another one counts
    Totals& own = of.tally.totals;
    Totals& totals = fit_.model().laid_out->gives_outputs(of.replica) ? own : scratch;
    const Tensors gradients = gradients_of(of, totals);
    if (totals.bad_step >= 0 && own.bad_step < 0) own.bad_step = of.batch.step();
    fit_.raise_in_turn(of.epoch, own);
    update(of, gradients, totals.bad_step >= 0);
    fit_.model().laid_out->pipeline(of.replica, fit_.options().microbatches).send_ties();
    show(of);
  }

  const Totals& shown(const Totals& own) const override {
    return fit_.model().modules.whole() != nullptr ? shown_ : own;
  }

 private:
  Tensors gradients_of(const BatchOfStep& of, Totals& totals) {
    Model::State& model = fit_.model();
    const auto parts = microbatches_of(of);
    Tensors columns;
    if (of.batch.local_size(of.replica) > 0 && model.laid_out->reads(of.replica))
      columns = of.input.take(of.replica, of.batch);
    Tensors inputs = columns;
    inputs.resize(static_cast<size_t>(model.num_inputs));
    const auto loss = [&](int number, at::TensorList outputs) {
      const data::Share& rows = parts[static_cast<size_t>(number)];
      try {
        return loss_of(of, rows_of(columns, rows), rows.size(), outputs, totals);
      } catch (const RowError& error) {
        throw error.of_part(rows.begin);
      }
    };
    Tensors gradients;
    const AddedLosses refused(
        "a batch that comes in microbatches, or whose model is on several "
        "ranks, has no one forward pass; train whole parts of a batch");
    fit_.at_place(of.replica, of.epoch, of.batch, [&] {
      gradients = model.laid_out->step(
          of.replica, *model.modules.module(of.replica),
          {.rows = parts,
           .inputs = inputs,
           .loss = loss,
           .place = nn::SamplePlace{.seed = fit_.seed(),
                                    .step = of.epoch.first_update + of.batch.step(),
                                    .first_row = of.batch.first_row(of.replica)}});
    });
    return gradients;
  }

  at::Tensor loss_of(const BatchOfStep& of, const Tensors& columns, int64_t samples,
                     at::TensorList outputs, Totals& totals) {
    const Goals& goals = fit_.goals();
    const BatchParts parts =
        parts_of(columns, fit_.model().num_inputs, goals, fit_.label_weights());
    const Tensors given = outputs.vec();
    const at::Tensor loss =
        totals.add_losses(goals, given, parts, fit_.divisors_of(of.batch, of.input));
    if (!loss.requires_grad()) Fit::throw_without_graph();
    totals.samples += samples;
    totals.add_metrics(goals, given, parts);
    fit_.look_at_loss(of, {parts, given, {}}, totals);
    return loss;
  }

  void update(const BatchOfStep& of, const Tensors& gradients, bool bad) {
    Optimizer& optimizer = fit_.optimizer();
    fit_.tell(of.replica, of.tally.totals);
    if (bad && fit_.leaves_bad_steps_out())
      optimizer.leave_out(of.replica);
    else if (of.batch.local_size(of.replica) == 0)
      optimizer.abstain(of.replica);
    else
      optimizer.apply(of.replica, gradients);
  }

  // What the rank that gives the outputs of the first replica has added up is what callbacks and
  // progress see: those are rank 0's.
  void show(const BatchOfStep& of) {
    const World& world = *of.epoch.world;
    if (world.model_ranks() == 1) return;
    const Goals& goals = fit_.goals();
    const Totals& totals = of.tally.totals;
    const int root = world.model_ranks() - world.mesh.size(mesh::Axis::tensor);
    Group& group = of.replica.group();
    std::vector<double> packed;
    if (of.replica.rank() == root) packed = totals.packed(goals, totals.widths(goals));
    int64_t count = std::ssize(packed);
    group.broadcast(span_of(std::span(&count, 1)), root, world.time_limit).wait(world.time_limit);
    packed.resize(static_cast<size_t>(count));
    group.broadcast(span_of(std::span(packed)), root, world.time_limit).wait(world.time_limit);
    if (of.replica.local_rank() == 0) shown_ = Totals::unpacked(goals, packed);
  }

  Fit& fit_;
  Totals shown_;  // of the first replica, where it is on several ranks
};

}  // namespace

std::unique_ptr<StepBody> make_body_in_parts(Fit& fit) { return std::make_unique<InParts>(fit); }

}  // namespace tutti::detail
