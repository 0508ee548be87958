#include "tutti/train/model/detail/laid_out.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/exported/stages.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/parallel/model/exported_stages.h"
#include "tutti/parallel/model/graph_stage.h"
#include "tutti/parallel/model/layer_costs.h"
#include "tutti/parallel/stages/sequential_stages.h"
#include "tutti/sync/tensors.h"
#include "tutti/sync/updater_parts.h"
#include "tutti/train/model/detail/late_state.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {
namespace {

using mesh::Axis;
using parallel::GraphStage;
using parallel::StageRange;

constexpr int kTimingPatience = 10;  // time limits that others wait for rank 0 to time all layers

/// No group of other modules, which GraphStage has for the layers of other stages too.
bool is_layer(const torch::nn::Module& module) {
  return typeid(module) != typeid(torch::nn::Module) ||
         !module.parameters(/*recurse=*/false).empty();
}

/// The stages of one rank, whose layers stand in it under the names of the whole model.
class RankModule : public torch::nn::Module {
 public:
  explicit RankModule(std::vector<std::shared_ptr<torch::nn::Module>> stages)
      : torch::nn::Module("Stages"), stages_(std::move(stages)) {
    for (const auto& stage : stages_) take_layers(*stage);
  }

  const std::vector<std::shared_ptr<torch::nn::Module>>& stages() const noexcept { return stages_; }

 private:
  // A layer's own parts come with it, right behind it.
  void take_layers(const torch::nn::Module& stage) {
    std::string layer = "?";
    for (const auto& module : stage.named_modules("", /*include_self=*/false)) {
      if (!is_layer(*module.value()) || module.key().starts_with(layer + '.')) continue;
      layer = module.key();
      nn::detail::register_state(*this, layer, {.module = module.value()});
    }
  }

  std::vector<std::shared_ptr<torch::nn::Module>> stages_;
};

std::shared_ptr<torch::nn::Module> module_of(const std::vector<parallel::Stage>& chunks) {
  if (chunks.size() == 1) return chunks[0].module;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const parallel::Stage& chunk : chunks) modules.push_back(chunk.module);
  return std::make_shared<RankModule>(std::move(modules));
}

template <class... Kinds>
bool is_one_of(const std::shared_ptr<torch::nn::Module>& module) {
  return (std::dynamic_pointer_cast<Kinds>(module) || ...);
}

// Its numbers would depend on which rank draws them, and when.
void require_no_random_numbers(const torch::nn::Sequential& whole) {
  using namespace torch::nn;
  for (const auto& part : whole->named_modules())
    if (is_one_of<DropoutImpl, Dropout2dImpl, Dropout3dImpl, AlphaDropoutImpl,
                  FeatureAlphaDropoutImpl, RReLUImpl>(part.value()))
      throw UsageError(fmt::format(
          "Model: layer {} is {}, which draws random numbers outside of tutti::nn: they would "
          "depend on the layout; use tutti::nn::Dropout",
          part.key(), part.value()->name()));
}

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

Tensors rows_of(at::TensorList columns, const data::Share& rows) {
  Tensors part;
  for (const at::Tensor& column : columns)
    part.push_back(column.narrow(0, rows.begin, rows.size()));
  return part;
}

LaidOut::LaidOut(const Strategy& strategy, parallel::ModelLayout layout)
    : strategy_(strategy), layout_(std::move(layout)) {
  const World& world = strategy.world();
  mesh_ = world.mesh;
  deals_out_ = world.model_ranks() > 1 || world.tensor_blocks > 1 || layout_.recompute.in_layers();
  if (!deals_out_) return;
  tensor_groups_.resize(static_cast<size_t>(world.local));
  for_each_local(world, [&](int local) {
    const auto number = static_cast<size_t>(local);
    const Group group = world.mesh_groups.empty() ? Group() : world.mesh_groups[number].tensor;
    tensor_groups_[number] = parallel::TensorGroup(group, world.tensor_blocks, world.time_limit);
  });
}

// A world that grows has no mesh: nobody shares a model there.
parallel::TensorGroup LaidOut::tensor_group(int local) const {
  const auto number = static_cast<size_t>(local);
  if (number < tensor_groups_.size()) return tensor_groups_[number];
  const World& world = strategy_.world();
  return parallel::TensorGroup(Group(), world.tensor_blocks, world.time_limit);
}

int LaidOut::num_ranks() const { return mesh_.size(Axis::stage); }

// One rank waits for nobody: it goes through its microbatches one by one.
mesh::Schedule LaidOut::schedule_of(int microbatches) const {
  if (num_ranks() == 1) return parallel::one_f_one_b().schedule(1, microbatches);
  return layout_.schedule.schedule(num_ranks(), microbatches);
}

mesh::Schedule LaidOut::schedule_of_any() const {
  if (num_ranks() == 1 || layout_.schedule.csv.empty()) return schedule_of(2 * num_ranks());
  return mesh::from_csv(read_file(layout_.schedule.csv), layout_.schedule.csv.string());
}

void LaidOut::check_microbatches(int microbatches) const {
  if (deals_out_) schedule_of(microbatches);
}

std::vector<StageRange> LaidOut::named_ranges(const nn::Graph& graph, int stages) const {
  auto ranges = parallel::ranges_by_names(graph, layout_.cut.before);
  require_stages(ranges.size(), stages);
  return ranges;
}

void LaidOut::require_stages(size_t cut, int stages) const {
  if (cut != static_cast<size_t>(stages))
    throw UsageError(fmt::format(
        "Model: cuts before {} make {} stages; {} ranks on axis stage with {} each have {}",
        fmt::join(layout_.cut.before, ", "), cut, num_ranks(), stages / num_ranks(), stages));
}

// Rank 0 has timed the layers, and decides for all.
std::vector<size_t> LaidOut::decided_by_first(const std::vector<size_t>& own) const {
  const World& world = strategy_.world();
  std::vector<int64_t> all(own.begin(), own.end());
  for_each_local(world, [&](int local) {
    std::vector<int64_t> room(own.begin(), own.end());
    Group group = world.groups[static_cast<size_t>(local)];
    const Millis patience = kTimingPatience * world.time_limit;
    group.broadcast(span_of(std::span(room)), 0, patience).wait(patience);
    if (local == 0) all = std::move(room);
  });
  return {all.begin(), all.end()};
}

std::vector<StageRange> LaidOut::balanced_ranges(const nn::Graph& graph, int stages) const {
  const World& world = strategy_.world();
  const parallel::Cuts cuts(graph, parallel::roles_of(graph, layout_.plan, world.tensor_blocks));
  cuts.require_stages(stages);
  std::vector<size_t> begins(static_cast<size_t>(stages));
  if (world.first_rank == 0) begins = cuts.balanced(stages);
  begins = decided_by_first(begins);
  std::vector<StageRange> ranges;
  for (size_t i = 0; i < begins.size(); ++i)
    ranges.push_back({begins[i], i + 1 < begins.size() ? begins[i + 1] : graph.nodes().size()});
  return ranges;
}

// Where one device has all stages the cut is of no use, but a name that no layer has is wrong there
// too.
void LaidOut::require_layers_of_cut(const nn::Graph& graph) const {
  if (!layout_.cut.before.empty()) parallel::ranges_by_names(graph, layout_.cut.before);
}

void LaidOut::deal(const nn::Graph& graph) {
  graph_ = graph;
  if (layout_.plan.empty())
    layout_.plan = parallel::default_plan(graph, strategy_.world().tensor_blocks);
  const int stages = schedule_of_any().stages();
  require_layers_of_cut(graph);
  if (stages == 1)
    ranges_ = {{0, graph.nodes().size()}};
  else if (!layout_.cut.before.empty())
    ranges_ = named_ranges(graph, stages);
  else
    ranges_ = balanced_ranges(graph, stages);
  if (stages > 1 && strategy_.world().chief)
    log(LogLevel::info, "model: {} stages, which begin with {}", stages, list_of(graph, ranges_));
}

ErasedModel LaidOut::make(int local, ErasedModel model) {
  if (deals_out_) {
    if (model.graph) return make(local, *model.graph);
    if (const auto whole = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model.module))
      return make(local, torch::nn::Sequential(whole));
    if (const auto network = std::dynamic_pointer_cast<ExportedModule>(model.module))
      return make(local, network);
    throw UsageError(
        "Model: the factory returned a module, which cannot be cut into stages or blocks: its "
        "layers are members of its own type; return an nn::Graph (the zoo's models are) or a "
        "torch::nn::Sequential, or compose it of tutti::parallel's layers in a custom loop");
  }
  if (model.graph) require_layers_of_cut(*model.graph);
  model = with_module(std::move(model));
  if (const auto known = std::dynamic_pointer_cast<ExportedModule>(model.module)) {
    if (!layout_.cut.before.empty())
      parallel::require_modules(ExportedCuts(known), layout_.cut.before);
    if (layout_.recompute.in_stages()) known->require_repeatable();
  }
  if (!model.module) throw UsageError("Model: the factory returned no module");
  model.forward = explained(model.module, std::move(model.forward));
  take_whole(local, model.module, model.forward);
  return model;
}

NeedsSample::NeedsSample()
    : UsageError(
          "Model: layers of a Sequential, and a network whose sizes may change, do not say what "
          "goes into their stages; the data of fit(), evaluate() or predict() do, and until one of "
          "them has had some it has no parts: or say it, {.input = parallel::sample_of(dataset)}, "
          "or parallel::Border{{1, 28, 28}}") {}

ErasedModel LaidOut::make(int local, const nn::Graph& graph) {
  if (!graph_) deal(graph);
  std::vector<parallel::Stage> chunks;
  for (const auto& stage : parallel::make_stages(graph, ranges_, stages_of_rank(local),
                                                 tensor_group(local), layout_.plan))
    chunks.push_back(parallel::stage_of(stage, layout_.recompute));
  return keep_chunks(local, std::move(chunks));
}

std::vector<size_t> LaidOut::cuts_of(torch::nn::Sequential whole) const {
  const int stages = schedule_of_any().stages();
  if (layout_.cut.before.empty())
    return parallel::balanced_cuts(std::move(whole), *layout_.input, stages);
  const std::vector<std::string> names = whole->named_children().keys();
  std::vector<size_t> cuts{0};
  for (const std::string& name : layout_.cut.before) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) throw UsageError(unknown_message("layer to cut before", name, names));
    cuts.push_back(static_cast<size_t>(found - names.begin()));
  }
  cuts.push_back(names.size());
  require_stages(cuts.size() - 1, stages);
  return cuts;
}

ErasedModel LaidOut::make(int local, const torch::nn::Sequential& whole) {
  const World& world = strategy_.world();
  if (world.tensor_blocks > 1)
    throw UsageError(
        "Model: layers of a Sequential are not cut into blocks (--mesh tensor=N, --tensor-blocks); "
        "return an nn::Graph");
  require_no_random_numbers(whole);
  if (!layout_.input) throw NeedsSample();
  if (names_.empty()) {
    take_names(*whole);
    cuts_ = decided_by_first(cuts_of(whole));
  }
  const auto stages = parallel::sequential_stages(whole, *layout_.input, cuts_, layout_.recompute);
  std::vector<parallel::Stage> chunks;
  for (const int stage : stages_of_rank(local))
    chunks.push_back(stages[static_cast<size_t>(stage)]);
  return keep_chunks(local, std::move(chunks));
}

void LaidOut::take_names(const torch::nn::Module& whole) {
  for (const auto& parameter : whole.named_parameters()) names_.push_back(parameter.key());
  for (const auto& buffer : whole.named_buffers()) names_.push_back(buffer.key());
}

std::vector<int> LaidOut::stages_of_rank(int local) const {
  const World& world = strategy_.world();
  const int rank = world.place_of_local(local)[static_cast<size_t>(Axis::stage)];
  const mesh::Schedule schedule = schedule_of_any();
  std::vector<int> own;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    own.push_back(schedule.stage_of(rank, chunk));
  return own;
}

std::vector<size_t> LaidOut::cuts_of(const ExportedCuts& network) const {
  const int stages = schedule_of_any().stages();
  std::vector<size_t> places;
  if (!layout_.cut.before.empty() && stages > 1) {
    places = parallel::places_before(network, layout_.cut.before);
    require_stages(places.size() + 1, stages);
    return places;
  }
  parallel::require_modules(network, layout_.cut.before);
  if (stages == 1) return places;
  parallel::require_stages(network, stages);
  places.resize(static_cast<size_t>(stages) - 1);
  if (strategy_.world().first_rank == 0) places = parallel::balanced_places(network, stages);
  return decided_by_first(places);
}

ErasedModel LaidOut::make(int local, const std::shared_ptr<ExportedModule>& whole) {
  if (strategy_.world().tensor_blocks > 1)
    throw UsageError(
        "Model: a network of a .pt2 file is one list of calls, in which layers are not told apart: "
        "it can be cut into stages, but not into blocks (--mesh tensor=N, --tensor-blocks); write "
        "it as an nn::Graph");
  const bool has_sample = layout_.input.has_value();
  if (!has_sample && ExportedCuts::needs_sample(*whole)) throw NeedsSample();
  const ExportedCuts network(whole,
                             has_sample ? std::optional(layout_.input->shape) : std::nullopt);
  const bool is_cut = schedule_of_any().stages() > 1;
  if (is_cut)
    network.require_certain_evaluation(
        "Model: a network of a .pt2 file whose graph of evaluation draws random numbers cannot be "
        "cut into stages: outside of a training step they come from generators, and would depend "
        "on which rank draws; export one that draws none, or give each replica a whole one");
  if (names_.empty()) {
    take_names(*whole);
    cuts_ = cuts_of(network);
    if (is_cut && strategy_.world().chief) {
      std::vector<std::string> words;
      for (const size_t cut : cuts_) words.push_back(network.places().all[cut].names.front());
      log(LogLevel::info, "model: {} stages, cut before {}", cuts_.size() + 1,
          fmt::join(words, ", "));
    }
  }
  std::vector<parallel::Stage> chunks;
  for (const int stage : stages_of_rank(local))
    chunks.push_back(parallel::stage_of(network, cuts_, stage, layout_.recompute));
  if (!exported_) exported_ = std::dynamic_pointer_cast<ExportedModule>(chunks[0].module);
  return keep_chunks(local, std::move(chunks));
}

ErasedModel LaidOut::keep_chunks(int local, std::vector<parallel::Stage> chunks) {
  ErasedModel made{.module = module_of(chunks), .forward = chunks[0].forward};
  if (schedule_of_any().stages() > 1)
    made.forward = [](at::TensorList) -> Tensors { refuse_forward(); };
  keep(local, {.chunks = std::move(chunks)});
  return made;
}

void LaidOut::take_whole(int local, const std::shared_ptr<torch::nn::Module>& module,
                         std::function<Tensors(at::TensorList)> forward) {
  parallel::Stage all{.module = module, .forward = std::move(forward)};
  all.spans = {{.forward = all.forward, .recompute = in_parts()}};
  keep(local, {.chunks = {std::move(all)}});
}

// A resized world has them made anew.
void LaidOut::keep(int local, Rank own) {
  ranks_.resize(std::max(ranks_.size(), static_cast<size_t>(local) + 1));
  ranks_[static_cast<size_t>(local)] = std::move(own);
}

std::vector<std::string> LaidOut::names() const {
  std::vector<std::string> names = names_;
  if (!graph_) return names;
  for (const nn::Node& node : graph_->nodes())
    for (const nn::Parameter& parameter : node.parameters)
      names.push_back(nn::full_name(node, parameter));
  return names;
}

std::map<std::string, Piece> LaidOut::pieces_of(const torch::nn::Module& module) {
  if (const auto* const stage = dynamic_cast<const GraphStage*>(&module)) return stage->pieces();
  std::map<std::string, Piece> all;
  if (const auto* const rank = dynamic_cast<const RankModule*>(&module))
    for (const auto& stage : rank->stages()) all.merge(pieces_of(*stage));
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
  if (!kept) {
    parallel::PipelineOptions options{.limit = replica.time_limit()};
    if (mesh_.model_ranks() > 1)
      options.after_action = [this, local = replica.local_rank()] {
        if (const auto gathers = strategy_.gathers()) gathers->meet(local, Until::action_ends);
      };
    kept = std::make_unique<parallel::Pipeline>(replica.group_of(Axis::stage),
                                                schedule_of(microbatches), own.chunks, options);
  }
  if (std::exchange(own.seen_changes, changes_) != changes_) kept->send_ties();
  return *kept;
}

void LaidOut::send_ties(ReplicaContext& replica) {
  const int last = ranks_[static_cast<size_t>(replica.local_rank())].last_step;
  pipeline(replica, last > 0 ? last : batches_at_once()).send_ties();
}

Tensors LaidOut::step(ReplicaContext& replica, const torch::nn::Module& module,
                      const StepInParts& parts) {
  std::vector<int64_t> sizes;
  for (const data::Share& rows : parts.rows) sizes.push_back(rows.size());
  parallel::Pipeline& stages = pipeline(replica, static_cast<int>(sizes.size()));
  ranks_[static_cast<size_t>(replica.local_rank())].last_step = static_cast<int>(sizes.size());
  const auto by_chunk =
      stages.step({.sizes = sizes,
                   .inputs =
                       [&](int number) {
                         return rows_of(parts.inputs, parts.rows[static_cast<size_t>(number)]);
                       },
                   .loss = parts.loss,
                   .place = parts.place});
  const std::vector<Tensors> parameters = trained(replica);
  std::unordered_map<const at::TensorImpl*, at::Tensor> gradients;
  for (size_t chunk = 0; chunk < by_chunk.size(); ++chunk)
    for (size_t i = 0; i < by_chunk[chunk].size(); ++i)
      gradients[parameters[chunk].at(i).unsafeGetTensorImpl()] = by_chunk[chunk][i];
  Tensors ordered;
  for (const auto& [name, parameter] : unique_parameters(module))
    ordered.push_back(gradients[parameter.unsafeGetTensorImpl()]);
  return ordered;
}

ReplicatedModules dealt_out(const Strategy& strategy, std::shared_ptr<LaidOut> laid_out,
                            std::function<ErasedModel()> factory,
                            std::function<void(const ErasedModel&)> made) {
  return {strategy,
          [factory = std::move(factory), made = std::move(made), laid_out](int local) {
            const ErasedModel model = laid_out->make(local, factory());
            if (made) made(model);
            return model.module;
          },
          {.pieces_of = &LaidOut::pieces_of, .order = [laid_out] { return laid_out->names(); }}};
}

}  // namespace tutti::detail
