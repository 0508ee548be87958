// What is trained in a loop of one's own, and the rounds of its ranks.
#include "tutti/sync/replicated/detail/distributed_state.h"

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>

#include "tutti/comm/group/more_reductions.h"
#include "tutti/sync/replicated/broadcasts.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

// '1' or '0' for each.
std::string trained(const NamedTensors& named) {
  std::string words;
  for (const auto& [name, tensor] : named) words += tensor.requires_grad() ? '1' : '0';
  return words;
}
std::vector<const void*> parameters_given(const torch::optim::Optimizer& optimizer) {
  std::vector<const void*> all;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) all.push_back(parameter.unsafeGetTensorImpl());
  return all;
}

}  // namespace

void DistributedOptimizer::State::take_adasum(const detail::LoopParameters& all) {
  if (!std::has_single_bit(static_cast<unsigned>(group.size())))
    throw UsageError(fmt::format(
        "DistributedOptimizer: adasum over {} ranks, expected a power of two, since pairs of pairs "
        "are combined; take op = mean, or Group::split() off as many",
        group.size()));
  if (!all.sparse.empty())
    throw UsageError(fmt::format(
        "DistributedOptimizer: adasum of sparse gradients, of \"{}\"; build the embedding with "
        "sparse(false)",
        all.sparse[0].first));
  for (const auto& [name, parameter] : all.dense)
    if (parameter.requires_grad() && parameter.scalar_type() != at::kFloat &&
        parameter.scalar_type() != at::kDouble)
      throw UsageError(fmt::format(
          "DistributedOptimizer: adasum of \"{}\", which is {}, expected Float or Double", name,
          c10::toString(parameter.scalar_type())));
  options.op = ReduceOp::sum;
  options.buckets.bucket_bytes = options.buckets.first_bucket_bytes = 1;
  options.buckets.reduction = adasum();
}

void DistributedOptimizer::State::bind(detail::LoopParameters all, detail::BucketState kept) {
  given = parameters_given(optimizer);
  const std::vector<at::Tensor> before = std::move(parameters);
  parameters = tensors_of(all.dense);
  tables = std::move(all.sparse);
  others = std::move(all.others);
  layout = Slots::of(detail::slots_of(all.dense));
  detail::BucketState state{.tensors = std::vector<detail::CodedState>(parameters.size()),
                            .step = kept.step};
  for (size_t i = 0; i < before.size() && i < kept.tensors.size(); ++i)
    for (size_t at = 0; at < parameters.size(); ++at)
      if (parameters[at].is_same(before[i])) state.tensors[at] = std::move(kept.tensors[i]);
  reducer.reset();
  reducer = std::make_unique<detail::GradientReducer>(
      group, layout, parameters, options.op, options.buckets, options.time_limit, std::move(state));
  reducer->expect_passes(options.backward_passes_per_step);
  reducer->let_nothing_train();
  reducer->hear(detail::kRankWords);
  set_scale();
  table_passes.assign(tables.size(), 0);
  hook_tables();
}

void DistributedOptimizer::State::hook_tables() {
  table_hooks = detail::ReadyHooks(tensors_of(tables), [this](int table) { table_ready(table); });
  hooked = trained(tables);
}

NamedTensors DistributedOptimizer::State::newcomers() const {
  bool thawed = false;
  for (size_t i = 0; i < parameters.size(); ++i)
    thawed |= !layout.slots[i].trained && parameters[i].requires_grad();
  if (!thawed && parameters_given(optimizer) == given) return {};
  NamedTensors added;
  detail::LoopParameters all = detail::parameters_of(module, optimizer);
  for (auto& [name, tensor] : all.dense) {
    const auto same = [&](const at::Tensor& one) { return one.is_same(tensor); };
    const auto at = std::ranges::find_if(parameters, same) - parameters.begin();
    const bool bound = at < std::ssize(parameters) && layout.slots[static_cast<size_t>(at)].trained;
    if (tensor.requires_grad() && !bound) added.emplace_back(name, tensor);
  }
  for (auto& table : all.sparse)
    if (std::ranges::none_of(tables, [&](const auto& one) { return one.first == table.first; }))
      added.push_back(std::move(table));
  return added;
}

bool DistributedOptimizer::State::take_in(const NamedTensors& added, PartInStep part) {
  detail::LoopParameters all = detail::parameters_of(module, optimizer);
  if (options.adasum) take_adasum(all);
  broken = true;
  NamedTensors dense = added;
  std::erase_if(dense, [&](const auto& one) {
    return std::ranges::any_of(all.sparse, [&](const auto& t) { return t.first == one.first; });
  });
  detail::BucketState kept = reducer->take_state();
  if (dense.empty()) {
    bind(std::move(all), std::move(kept));
    broken = false;
    return false;
  }
  const std::vector<at::Tensor> tensors = tensors_of(dense);
  ReplicatedOptions plain = options.buckets;
  plain.compression = {};
  detail::GradientReducer once(group, Slots::of(detail::slots_of(dense)), tensors, options.op,
                               plain, options.time_limit);
  once.let_nothing_train();
  once.set_scale(options.prescale * weight.value_or(1));
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : tensors) gradients.push_back(parameter.grad());
  once.finish(gradients, {.part = part});
  once.wait();
  bind(std::move(all), std::move(kept));
  broken = false;
  return once.any_gradient();
}

void DistributedOptimizer::State::table_ready(int table) {
  if (apart) {
    tables_unsent = true;
    return;
  }
  const int passes = ++table_passes[static_cast<size_t>(table)];
  if (passes > options.backward_passes_per_step)
    throw UsageError(fmt::format(
        "parameter \"{}\" got a second gradient in one step: backward() ran {} times before "
        "step(), and backward_passes_per_step is {}",
        tables[static_cast<size_t>(table)].first, passes, options.backward_passes_per_step));
}

bool DistributedOptimizer::State::has_begun() const {
  return reducer->has_begun() ||
         std::ranges::any_of(table_passes, [](int passes) { return passes > 0; });
}

bool DistributedOptimizer::State::has_unsent() const {
  const auto has_gradient = [](const at::Tensor& one) { return one.grad().defined(); };
  return (reducer->has_unsent() && std::ranges::any_of(parameters, has_gradient)) ||
         (tables_unsent && std::ranges::any_of(tensors_of(tables), has_gradient));
}

void DistributedOptimizer::State::require_whole(const char* call) const {
  if (broken)
    throw UsageError(fmt::format(
        "DistributedOptimizer: {} after one that failed half-way, as its error said: ranks are no "
        "longer in step; the job starts again, or goes on with another DistributedOptimizer of a "
        "group whose ranks are all there",
        call));
}

void DistributedOptimizer::State::require_open(const char* call) const {
  require_whole(call);
  if (apart)
    throw UsageError(fmt::format(
        "DistributedOptimizer: {} inside of no_sync(), whose gradients are of this rank alone; let "
        "its scope end before",
        call));
  if (synchronized)
    throw UsageError(fmt::format(
        "DistributedOptimizer: {} after synchronize(), whose gradients are those of all ranks: "
        "step() comes before it, or zero_grad() of the DistributedOptimizer where the step is left "
        "out",
        call));
}

void DistributedOptimizer::State::require_nothing_begun(const char* call) const {
  require_open(call);
  if (has_begun())
    throw UsageError(fmt::format(
        "DistributedOptimizer: {} after a backward() whose gradients were taken for the next "
        "step(); it comes before that one, or after the step",
        call));
}

void DistributedOptimizer::State::require_gradient(bool any) const {
  if (any) return;
  try {
    detail::require_any_gradient(layout, kComputes, false);
    for (const auto& [name, table] : tables)
      if (table.requires_grad())
        throw detail::NothingTrained(fmt::format(
            "no parameter of the optimizer has a gradient on any replica, so that the step would "
            "train nothing: not \"{}\", of sparse gradients",
            name));
  } catch (const detail::NothingTrained& nothing) {
    std::string other;
    for (const auto& [name, parameter] : others)
      if (parameter.grad().defined() && other.empty())
        other = fmt::format("; \"{}\", which the optimizer does not train, has one", name);
    throw UsageError(fmt::format(
        "DistributedOptimizer: {}\n  before step() goes backward() from a loss of the module that "
        "it was made for{}",
        nothing.what(), other));
  }
}

detail::Round DistributedOptimizer::State::exchange(detail::RankSays says) {
  const NamedTensors added = newcomers();
  std::string words;
  for (const auto& parameter : parameters) words += parameter.requires_grad() ? '1' : '0';
  words += trained(tables);
  if (!added.empty()) words = words_of(detail::parameters_of(module, optimizer));
  says.parameters = std::hash<std::string>()(words);
  says.rates = std::hash<std::string>()(detail::learning_rates_of(optimizer));
  says.steps = steps;
  if (!says.ends) says.weight = weight;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  broken = true;
  reducer->finish(gradients, {.part = says.ends ? kAbstains : kComputes}, detail::rank_words(says));
  reducer->wait();
  broken = false;
  try {
    return take_round(says, added);
  } catch (...) {
    forget_gradients();
    throw;
  }
}

detail::Round DistributedOptimizer::State::take_round(const detail::RankSays& says,
                                                      const NamedTensors& added) {
  const detail::Round round =
      detail::round_of(detail::ranks_of(reducer->heard()), options.op, !options.average_losses);
  if (round.parameters_differ)
    detail::require_alike(group, words_of(detail::parameters_of(module, optimizer)),
                          options.time_limit);
  if (round.rates_differ)
    detail::require_alike(group, says.ends ? "" : detail::learning_rates_of(optimizer),
                          options.time_limit);
  const PartInStep part = says.ends ? kAbstains : kComputes;
  bool any = reducer->any_gradient();
  if (!added.empty()) any |= take_in(added, part);
  any |= gather_tables(part);
  if (round.all_end) return round;
  require_gradient(any);
  scale_gradients(round.scale * options.postscale);
  return round;
}

void DistributedOptimizer::State::scale_gradients(double scale) {
  const at::NoGradGuard no_grad;
  if (scale != 1)
    for (const auto& parameter : parameters)
      if (parameter.grad().defined()) parameter.grad().mul_(scale);
  const double of_rows = scale / (options.op == ReduceOp::mean ? group.size() : 1);
  for (const auto& [name, table] : tables)
    if (table.grad().defined() && of_rows != 1) table.grad().mul_(of_rows);
}

// So that the next step does not take what is reduced already for this rank's own.
void DistributedOptimizer::State::forget_gradients() {
  for (const auto& parameter : parameters) parameter.mutable_grad().reset();
  for (const auto& [name, table] : tables) table.mutable_grad().reset();
  table_passes.assign(tables.size(), 0);
  tables_unsent = false;
}

bool DistributedOptimizer::State::gather_tables(PartInStep part) {
  bool any = false;
  const double scale = options.prescale * weight.value_or(1);
  broken = true;
  for (auto& [name, table] : tables) {
    const bool counts = part == kComputes && scale != 0;
    table.mutable_grad() = detail::rows_of_all(
        group, name, table, counts ? table.grad() : at::Tensor(), scale, options.time_limit);
    any |= table.grad().defined();
  }
  broken = false;
  table_passes.assign(tables.size(), 0);
  tables_unsent = false;
  if (hooked != trained(tables)) hook_tables();  // some were thawed
  return any;
}

void DistributedOptimizer::State::take_from(int root) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all = parameters;
  std::ranges::copy(tensors_of(tables), std::back_inserter(all));
  for (const auto& parameter : all) {
    const at::Tensor values = parameter.detach().contiguous();
    group.broadcast(span_of(values), root).wait();
    if (group.rank() != root) parameter.copy_(values);
  }
  broadcast_optimizer_state(optimizer, group, root);
}

}  // namespace tutti
