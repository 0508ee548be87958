// A step whose batch comes in microbatches, and whose model may be on several ranks.

#include <algorithm>
#include <cmath>

#include "tutti/base/event.h"
#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/fit/detail/fit.h"
#include "tutti/train/losses/detail/samples.h"

namespace tutti::detail {
namespace {

/// Rows of a replica's part of a batch, one range a microbatch.
std::vector<data::Share> microbatches_of(const Epoch& epoch, const DistributedBatch& batch,
                                         const ReplicaContext& replica) {
  const World& world = *epoch.world;
  const int64_t first_row = batch.first_row(replica);
  const int first = world.replica_of(replica.rank()) * world.microbatches;
  std::vector<data::Share> rows;
  for (int i = 0; i < world.microbatches; ++i) {
    const auto share = microbatch_of(batch.global_size(), world, first + i);
    rows.push_back({share.begin - first_row, share.end - first_row});
  }
  return rows;
}

}  // namespace

at::Tensor Fit::loss_of_part(const Epoch& epoch, const DistributedBatch& batch,
                             const ReplicaContext& replica, const Tensors& columns,
                             const data::Share& rows, at::TensorList outputs, const Divisors& by,
                             Totals& totals) {
  const BatchParts parts =
      parts_of(columns, model_.num_inputs, compiled_.goals, options_.class_weight);
  const Tensors given = outputs.vec();
  const at::Tensor loss = totals.add_losses(compiled_.goals, given, parts, by);
  if (!loss.requires_grad()) throw_without_graph();
  totals.samples += rows.size();
  totals.add_metrics(compiled_.goals, given, parts);
  if (!std::isfinite(totals.loss(compiled_.goals)) && totals.bad_step < 0)
    found_not_finite(replica, epoch, batch, {parts, given, {}}, totals);
  return loss;
}

// What the rank that gives the outputs of the first replica has added up is what callbacks and
// progress see: those are rank 0's.
void Fit::show_totals(ReplicaContext& replica, const Epoch& epoch, const Totals& totals) {
  const World& world = *epoch.world;
  if (world.model_ranks() == 1) return;
  const int root = world.model_ranks() - world.mesh.size(mesh::Axis::tensor);
  std::vector<double> packed;
  if (replica.rank() == root)
    packed = totals.packed(compiled_.goals, totals.widths(compiled_.goals));
  int64_t count = std::ssize(packed);
  replica.group()
      .broadcast(span_of(std::span(&count, 1)), root, world.time_limit)
      .wait(world.time_limit);
  packed.resize(static_cast<size_t>(count));
  replica.group()
      .broadcast(span_of(std::span(packed)), root, world.time_limit)
      .wait(world.time_limit);
  if (replica.local_rank() == 0) shown_ = Totals::unpacked(compiled_.goals, packed);
}

void Fit::train_in_parts(ReplicaContext& replica, const Epoch& epoch, const DistributedBatch& batch,
                         StepInput& input, Tally& tally) {
  const auto parts = microbatches_of(epoch, batch, replica);
  const int64_t samples = batch.local_size(replica);
  Tensors columns;
  if (samples > 0 && model_.laid_out->reads(replica)) columns = take_columns(replica, batch, input);
  Tensors inputs = columns;
  inputs.resize(static_cast<size_t>(model_.num_inputs));
  Totals scratch;  // of ranks whose outputs another one counts
  Totals& totals = model_.laid_out->gives_outputs(replica) ? tally.totals : scratch;
  const Divisors by = divisors_of(batch, input);
  const auto loss = [&](int number, at::TensorList outputs) {
    const data::Share& rows = parts[static_cast<size_t>(number)];
    try {
      return loss_of_part(epoch, batch, replica, rows_of(columns, rows), rows, outputs, by, totals);
    } catch (const RowError& error) {
      throw error.of_part(rows.begin);
    }
  };
  Tensors gradients;
  at_place(replica, epoch, batch, [&] {
    gradients =
        model_.laid_out->step(replica, *model_.modules.module(replica),
                              {.rows = parts,
                               .inputs = inputs,
                               .loss = loss,
                               .place = nn::SamplePlace{.seed = seed_,
                                                        .step = epoch.first_update + batch.step(),
                                                        .first_row = batch.first_row(replica)}});
  });
  const bool bad = totals.bad_step >= 0;
  if (bad && tally.totals.bad_step < 0) tally.totals.bad_step = batch.step();
  if (bad && epoch.world->in_turn() && options_.on_nan == OnNan::stop) raise(epoch, tally.totals);
  if (bad && leaves_bad_steps_out())
    compiled_.optimizer.leave_out(replica);
  else if (samples == 0)
    compiled_.optimizer.abstain(replica);
  else
    compiled_.optimizer.apply(replica, gradients);
  model_.laid_out->pipeline(replica, options_.microbatches).send_ties();
  show_totals(replica, epoch, tally.totals);
}

}  // namespace tutti::detail
