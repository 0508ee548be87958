#include "tutti/train/model/detail/laid_out.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <typeinfo>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/parallel/graph_stage.h"
#include "tutti/parallel/layer_costs.h"
#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

using layout::Axis;
using parallel::GraphStage;
using parallel::StageRange;

/// No group of other modules, which GraphStage has for the layers of other stages too.
bool is_layer(const torch::nn::Module& module) {
  return typeid(module) != typeid(torch::nn::Module) ||
         !module.parameters(/*recurse=*/false).empty();
}

/// The stages of one rank, whose layers stand in it under the names of the whole model.
class RankModule : public torch::nn::Module {
 public:
  explicit RankModule(std::vector<std::shared_ptr<GraphStage>> stages)
      : torch::nn::Module("Graph"), stages_(std::move(stages)) {
    for (const auto& stage : stages_) take_layers(*stage);
  }

  const std::vector<std::shared_ptr<GraphStage>>& stages() const noexcept { return stages_; }

 private:
  // A layer's own parts come with it, right behind it.
  void take_layers(const GraphStage& stage) {
    std::string layer = "?";
    for (const auto& module : stage.named_modules("", /*include_self=*/false)) {
      if (!is_layer(*module.value()) || module.key().starts_with(layer + '.')) continue;
      layer = module.key();
      nn::detail::register_state(*this, layer, {.module = module.value()});
    }
  }

  std::vector<std::shared_ptr<GraphStage>> stages_;
};

std::string list_of(const nn::Graph& graph, const std::vector<StageRange>& ranges) {
  std::vector<std::string> words;
  for (const StageRange& range : ranges) words.push_back(graph.nodes()[range.begin].name);
  return fmt::format("{}", fmt::join(words, ", "));
}

[[noreturn]] void refuse_forward() {
  throw UsageError(
      "this model's layers are on several ranks: none of them has a forward pass of its own; use "
      "fit, evaluate or predict");
}

}  // namespace

LaidOut::LaidOut(const Strategy& strategy, parallel::ModelLayout layout)
    : strategy_(strategy), layout_(std::move(layout)) {
  const World& world = strategy.world();
  mesh_ = world.mesh;
  deals_out_ = world.model_ranks > 1 || world.tensor_blocks > 1;
  if (!deals_out_) return;
  tensor_groups_.resize(static_cast<size_t>(world.local));
  const auto make = [&](int local) {
    const auto number = static_cast<size_t>(local);
    const Group group = world.mesh_groups.empty() ? Group() : world.mesh_groups[number].tensor;
    tensor_groups_[number] = parallel::TensorGroup(group, world.tensor_blocks, world.time_limit);
  };
  if (world.in_turn())
    for (int local = 0; local < world.local; ++local) make(local);
  else
    for_each_local(world, make);
}

int LaidOut::num_ranks() const { return mesh_.size(Axis::stage); }

// One rank waits for nobody: it goes through its microbatches one by one.
layout::Schedule LaidOut::schedule_of(int microbatches) const {
  if (num_ranks() == 1) return parallel::one_f_one_b().schedule(1, microbatches);
  return layout_.schedule.schedule(num_ranks(), microbatches);
}

layout::Schedule LaidOut::schedule_of_any() const {
  if (num_ranks() == 1 || layout_.schedule.csv.empty()) return schedule_of(2 * num_ranks());
  return layout::from_csv(read_file(layout_.schedule.csv), layout_.schedule.csv.string());
}

void LaidOut::check_microbatches(int microbatches) const {
  if (deals_out_) schedule_of(microbatches);
}

std::vector<StageRange> LaidOut::named_ranges(const nn::Graph& graph, int stages) const {
  auto ranges = parallel::ranges_by_names(graph, layout_.cut.before);
  if (std::ssize(ranges) != stages)
    throw UsageError(fmt::format(
        "Model: cuts before {} make {} stages; {} ranks on axis stage with {} each have {}",
        fmt::join(layout_.cut.before, ", "), ranges.size(), num_ranks(), stages / num_ranks(),
        stages));
  return ranges;
}

// Rank 0 times the layers, and decides for all.
std::vector<StageRange> LaidOut::balanced_ranges(const nn::Graph& graph, int stages) const {
  const World& world = strategy_.world();
  const parallel::Cuts cuts(graph, parallel::roles_of(graph, layout_.plan, world.tensor_blocks));
  cuts.require_stages(stages);
  std::vector<int64_t> begins(static_cast<size_t>(stages));
  if (world.first_rank == 0) std::ranges::copy(cuts.balanced(stages), begins.begin());
  for_each_local(world, [&](int local) {
    std::vector<int64_t> room = begins;
    Group group = world.groups[static_cast<size_t>(local)];
    group.broadcast(span_of(std::span(room)), 0, world.time_limit).wait(world.time_limit);
    if (local == 0) begins = std::move(room);
  });
  std::vector<StageRange> ranges;
  for (size_t i = 0; i < begins.size(); ++i)
    ranges.push_back({static_cast<size_t>(begins[i]), i + 1 < begins.size()
                                                          ? static_cast<size_t>(begins[i + 1])
                                                          : graph.nodes().size()});
  return ranges;
}

void LaidOut::deal(const nn::Graph& graph) {
  graph_ = graph;
  if (layout_.plan.empty())
    layout_.plan = parallel::default_plan(graph, strategy_.world().tensor_blocks);
  const int stages = schedule_of_any().stages();
  if (stages == 1)
    ranges_ = {{0, graph.nodes().size()}};
  else if (!layout_.cut.before.empty())
    ranges_ = named_ranges(graph, stages);
  else
    ranges_ = balanced_ranges(graph, stages);
  if (stages > 1 && strategy_.world().chief)
    log(LogLevel::info, "model: {} stages, which begin with {}", stages, list_of(graph, ranges_));
}

ErasedModel LaidOut::make(int local, const nn::Graph& graph) {
  if (!graph_) deal(graph);
  const World& world = strategy_.world();
  const auto rank = static_cast<int>(world.place_of_local(local)[static_cast<size_t>(Axis::stage)]);
  const layout::Schedule schedule = schedule_of_any();
  const auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor drawn = generator.get_state();
  std::vector<std::shared_ptr<GraphStage>> stages;
  Rank own;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    at::Generator(generator).set_state(drawn);  // each as if it were the only one
    stages.push_back(std::make_shared<GraphStage>(graph, ranges_, schedule.stage_of(rank, chunk),
                                                  tensor_groups_[static_cast<size_t>(local)],
                                                  layout_.plan));
    own.chunks.push_back(parallel::stage_of(stages.back()));
  }
  ErasedModel made;
  if (stages.size() == 1)
    made.module = stages[0];
  else
    made.module = std::make_shared<RankModule>(stages);
  if (ranges_.size() == 1)
    made.forward = [stage = stages[0]](at::TensorList inputs) { return stage->forward(inputs); };
  else
    made.forward = [](at::TensorList) -> Tensors { refuse_forward(); };
  keep(local, std::move(own));
  return made;
}

void LaidOut::take_whole(int local, const std::shared_ptr<torch::nn::Module>& module,
                         std::function<Tensors(at::TensorList)> forward) {
  Rank own;
  own.chunks.push_back({.module = module, .forward = std::move(forward)});
  keep(local, std::move(own));
}

// A resized world has them made anew.
void LaidOut::keep(int local, Rank own) {
  ranks_.resize(std::max(ranks_.size(), static_cast<size_t>(local) + 1));
  ranks_[static_cast<size_t>(local)] = std::move(own);
}

std::vector<std::string> LaidOut::names() const {
  std::vector<std::string> names;
  for (const nn::Node& node : graph_->nodes())
    for (const nn::Parameter& parameter : node.parameters)
      names.push_back(nn::full_name(node, parameter));
  return names;
}

std::map<std::string, Piece> LaidOut::pieces_of(const torch::nn::Module& module) {
  if (const auto* const stage = dynamic_cast<const GraphStage*>(&module)) return stage->pieces();
  std::map<std::string, Piece> all;
  if (const auto* const rank = dynamic_cast<const RankModule*>(&module))
    for (const auto& stage : rank->stages())
      all.insert(stage->pieces().begin(), stage->pieces().end());
  return all;
}

bool LaidOut::reads(const ReplicaContext& replica) const {
  const Rank& own = ranks_[static_cast<size_t>(replica.local_rank())];
  return std::ranges::any_of(own.chunks, [](const parallel::Stage& stage) {
    return stage.inputs.empty() || stage.outputs.empty();
  });
}

bool LaidOut::gives_outputs(const ReplicaContext& replica) const {
  const auto place = replica.place();
  const Rank& own = ranks_[static_cast<size_t>(replica.local_rank())];
  return place[static_cast<size_t>(Axis::tensor)] == 0 &&
         std::ranges::any_of(own.chunks,
                             [](const parallel::Stage& stage) { return stage.outputs.empty(); });
}

std::vector<Tensors> LaidOut::trained(const ReplicaContext& replica) const {
  std::vector<Tensors> all;
  for (const parallel::Stage& stage : ranks_[static_cast<size_t>(replica.local_rank())].chunks) {
    Tensors& own = all.emplace_back();
    for (const auto& [name, parameter] : unique_parameters(*stage.module))
      if (parameter.requires_grad()) own.push_back(parameter);
  }
  return all;
}

parallel::Pipeline& LaidOut::pipeline(ReplicaContext& replica, int microbatches) {
  Rank& own = ranks_[static_cast<size_t>(replica.local_rank())];
  auto& kept = own.by_microbatches[microbatches];
  if (!kept)
    kept = std::make_unique<parallel::Pipeline>(
        replica.group_of(Axis::stage), schedule_of(microbatches), own.chunks,
        parallel::PipelineOptions{.limit = replica.time_limit(), .recompute = layout_.recompute});
  return *kept;
}

}  // namespace tutti::detail
