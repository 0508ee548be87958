#include "tutti/train/fit/detail/counted_input.h"

#include "tutti/strategy/input/detail/input.h"
#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {

Tensors StepInput::take(const ReplicaContext& replica, const DistributedBatch& batch) {
  const auto place = static_cast<size_t>(batch.step() - first);
  if (place >= columns.size() || columns[place].empty()) return batch.host_columns(replica);
  if (replica.is_measured()) replica.computes(batch.local_size(replica), batch.global_size());
  return std::move(columns[place]);
}

CountedInput::CountedInput(const Goals& goals, int64_t num_inputs, bool accumulates)
    : goals_(goals),
      num_inputs_(num_inputs),
      accumulates_(accumulates),
      wanted_(counts_labels(goals)) {}

StepInput CountedInput::read(int local, const Epoch& epoch, int64_t first, int64_t end) {
  if (local == epoch.world->on_thread_of(local).front()) read_turn(local, epoch, first, end);
  return std::move(read_[static_cast<size_t>(local)]);
}

void CountedInput::add_up(const ReplicaContext& replica, const World& world, StepInput& input) {
  Group group = world.group_of(replica.local_rank());
  group.all_reduce_now(span_of(std::span<double>(input.counted)), ReduceOp::sum, world.time_limit);
}

// The columns of several batches are copied: a loader's memory is for those that it computes ahead.
StepInput CountedInput::read_one(int local, const Epoch& epoch, int64_t first, int64_t end) const {
  const World& world = *epoch.world;
  StepInput input{.first = first,
                  .columns = std::vector<Tensors>(static_cast<size_t>(end - first)),
                  .counted = std::vector<double>(goals_.size(), 0)};
  if (!world.gives_outputs(local)) return input;
  for (int64_t number = first; number < end; ++number) {
    if (part_of(*epoch.data, world, nullptr, number, local).share.size() == 0) continue;
    Tensors& columns = input.columns[static_cast<size_t>(number - first)];
    columns = epoch.batch(number).read(local, world.time_limit);
    if (accumulates_)
      for (at::Tensor& column : columns) column = column.clone();
    const Tensors targets = targets_of(columns, num_inputs_, goals_);
    for (size_t i = 0; i < goals_.size(); ++i)
      input.counted[i] +=
          static_cast<double>(goals_[i].loss.kernel().counted(targets[i]).value_or(0));
  }
  return input;
}

// Before the first of those that take turns computes: it cannot ask another one.
void CountedInput::read_turn(int local, const Epoch& epoch, int64_t first, int64_t end) {
  const auto turn = epoch.world->on_thread_of(local);
  std::vector<double> all(goals_.size(), 0);
  for (const int each : turn) {
    StepInput& input = read_[static_cast<size_t>(each)] = read_one(each, epoch, first, end);
    for (size_t i = 0; i < all.size(); ++i) all[i] += input.counted[i];
  }
  for (const int each : turn) read_[static_cast<size_t>(each)].counted = all;
}

}  // namespace tutti::detail
