/// What a DistributedOptimizer knows, and how it makes a round: ranks say what they have, gradients
/// become those of all, and what was added or thawed joins. Not for users.
/// Thread rule: as DistributedOptimizer.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/sync/detail/updater_state.h"
#include "tutti/sync/detail/vector_math.h"
#include "tutti/sync/replicated/detail/gradient_reducer.h"
#include "tutti/sync/replicated/detail/loop_parameters.h"
#include "tutti/sync/replicated/detail/loop_round.h"
#include "tutti/sync/replicated/distributed_optimizer.h"

namespace tutti {

struct DistributedOptimizer::State {
  State(const torch::nn::Module& module_in, torch::optim::Optimizer& optimizer_in, Group group_in,
        const DistributedOptimizerOptions& options_in)
      : module(module_in),
        optimizer(optimizer_in),
        group(std::move(group_in)),
        options(options_in) {
    detail::settle_vector_math();  // loops read their data on threads of their own
    detail::LoopParameters all;
    std::string words;
    std::exception_ptr failure;
    try {
      detail::check_loop(options);
      all = detail::parameters_of(module, optimizer);
      if (options.adasum) take_adasum(all);
      words = words_of(all);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    group.set_time_limit(options.time_limit);
    detail::require_alike(group, words, options.time_limit, failure);
    bind(std::move(all), {});
  }

  std::string words_of(const detail::LoopParameters& all) const {
    return detail::described(all, options, optimizer);
  }

  // Buckets of one parameter each, which Adasum combines.
  void take_adasum(const detail::LoopParameters& all);
  // Collective: these are what is trained from now on.
  void bind(detail::LoopParameters all, detail::BucketState kept);
  // Parameters that are trained, but are not in what was bound: come or thawed since.
  NamedTensors newcomers() const;
  // Collective, in a step in which all ranks have the same: it is their first.
  bool take_in(const NamedTensors& added, PartInStep part);
  // Collective: whether any rank has rows of a table.
  bool gather_tables(PartInStep part);

  // Of tables, which have no buckets, passes are counted: of those that are trained.
  void hook_tables();
  void table_ready(int table);
  bool has_begun() const;
  bool has_unsent() const;

  void require_whole(const char* call) const;
  void require_open(const char* call) const;
  void require_nothing_begun(const char* call) const;
  void require_gradient(bool any) const;
  void set_scale() { reducer->set_scale(options.prescale * weight.value_or(1)); }

  // Collective: gradients become those of all ranks, or, where it throws, undefined.
  detail::Round exchange(detail::RankSays says);
  detail::Round take_round(const detail::RankSays& says, const NamedTensors& added);
  void scale_gradients(double scale);
  void forget_gradients();
  // Collective: rank `root`'s parameters and the optimizer's state.
  void take_from(int root);

  const torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  Group group;
  DistributedOptimizerOptions options;
  std::vector<at::Tensor> parameters;  // of dense gradients
  NamedTensors tables;                 // of sparse ones
  NamedTensors others;
  std::vector<const void*> given;  // parameters in the optimizer's groups, when they were bound
  Slots layout;
  std::unique_ptr<detail::GradientReducer> reducer;
  std::vector<int> table_passes;  // by table, in this step
  detail::ReadyHooks table_hooks;
  std::string hooked;
  bool tables_unsent = false;  // a pass in no_sync() came to one, in this step
  std::optional<double> weight;
  uint64_t steps = 0;         // that the optimizer has made, since all ranks were alike
  bool broken = false;        // an exchange ended half-way: ranks are no longer in step
  bool apart = false;         // in no_sync()
  bool synchronized = false;  // gradients are those of all ranks, and step() is to come
};

}  // namespace tutti
