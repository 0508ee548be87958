/// LaidOut: a model as the ranks of a mesh compute it: stages on each, and the pipelines that go
/// through them. Without a mesh each rank has one stage, the model. Not for users.
/// Thread rule: make() by the strategy's thread; what takes a replica, by that one's.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/data/share.h"
#include "tutti/nn/graph.h"
#include "tutti/nn/sample_context.h"
#include "tutti/parallel/model/graph_stage.h"
#include "tutti/parallel/model/model_layout.h"
#include "tutti/parallel/stages/pipeline.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/model/detail/erased_model.h"

namespace tutti {

class ExportedModule;
class ExportedCuts;

namespace detail {

constexpr int kMostMicrobatches = 4096;

/// Some rows of each column.
Tensors rows_of(at::TensorList columns, const data::Share& rows);

/// One step of one replica: its part of a batch, in microbatches.
struct StepInParts {
  std::vector<data::Share> rows;  ///< of the part, by microbatch
  Tensors inputs;                 ///< all rows; of a rank that reads() none: anything
  std::function<at::Tensor(int microbatch, at::TensorList outputs)> loss;
  std::optional<nn::SamplePlace> place;  ///< of the part's first row
};

class LaidOut {
 public:
  /// Collective over the world of `strategy` where pieces of layers are on several ranks.
  LaidOut(const Strategy& strategy, parallel::ModelLayout layout);

  /// Whether a step is one of stages, be it of a single microbatch.
  bool in_parts() const noexcept { return deals_out_ || layout_.recompute.in_stages(); }

  /// What local rank `local` computes of what a factory has given. Throws UsageError for what
  /// cannot be dealt out.
  ErasedModel make(int local, ErasedModel model);
  /// The same of a graph. Draws initial values from LibTorch's default generator as
  /// the whole model's module does. Throws UsageError where the layout does not fit the graph.
  ErasedModel make(int local, const nn::Graph& graph);
  /// The same of a Sequential, whose children are the layers.
  ErasedModel make(int local, const torch::nn::Sequential& whole);
  /// The same of a network of a .pt2 file, which is cut before its modules' calls.
  ErasedModel make(int local, const std::shared_ptr<ExportedModule>& whole);
  /// A whole model is one stage.
  void take_whole(int local, const std::shared_ptr<torch::nn::Module>& module,
                  std::function<Tensors(at::TensorList)> forward);

  /// The whole model, once make() has dealt it out.
  const std::optional<nn::Graph>& graph() const noexcept { return graph_; }
  /// A part of a network of a .pt2 file that make() has dealt out, which knows the files; else
  /// null.
  const ExportedModule* exported() const noexcept { return exported_.get(); }

  /// Of its parameters and buffers, in its order.
  std::vector<std::string> names() const;

  /// Pieces of the parameters of what make() gave.
  static std::map<std::string, Piece> pieces_of(const torch::nn::Module& module);

  /// Whether a rank reads the inputs, and the targets, of its replica's part of a batch.
  bool reads(const ReplicaContext& replica) const;
  /// Whether it is the one of its replica that has the outputs, and counts them.
  bool gives_outputs(const ReplicaContext& replica) const;

  /// Throws UsageError where the schedule cannot take so many.
  void check_microbatches(int microbatches) const;

  /// Gradients of all parameters of `module`, which make() gave this rank, each once, in order:
  /// sums over the microbatches, undefined where there is none. Throws as Pipeline::step.
  Tensors step(ReplicaContext& replica, const torch::nn::Module& module, const StepInParts& parts);

  /// So many go through the stages one behind the other in forward passes.
  int batches_at_once() const { return schedule_of_any().microbatches; }
  /// Parameters were written to otherwise than by a step: copies of tied ones are behind. Between
  /// runs.
  void weights_changed() noexcept { ++changes_; }

  /// Steps of so many microbatches, or forward passes of as many batches. Collective over the
  /// replica's stages, when it is new.
  parallel::Pipeline& pipeline(ReplicaContext& replica, int microbatches);
  /// After an update: brings the copies of tied parameters up to date. Collective as pipeline().
  void send_ties(ReplicaContext& replica);

 private:
  struct Rank {
    std::vector<parallel::Stage> chunks;
    std::map<int, std::unique_ptr<parallel::Pipeline>> by_microbatches;
    int64_t seen_changes = 0;
    int last_step = 0;  ///< its microbatches; 0: there was none
  };
  std::vector<Tensors> trained(const ReplicaContext& replica) const;
  parallel::TensorGroup tensor_group(int local) const;
  int num_ranks() const;
  mesh::Schedule schedule_of(int microbatches) const;
  /// For where stages are, which no number of microbatches changes.
  mesh::Schedule schedule_of_any() const;
  void require_layers_of_cut(const nn::Graph& graph) const;
  void deal(const nn::Graph& graph);
  std::vector<parallel::StageRange> named_ranges(const nn::Graph& graph, int stages) const;
  std::vector<parallel::StageRange> balanced_ranges(const nn::Graph& graph, int stages) const;
  std::vector<size_t> cuts_of(torch::nn::Sequential whole) const;
  std::vector<size_t> cuts_of(const ExportedCuts& network) const;
  std::vector<int> stages_of_rank(int local) const;  ///< by chunk
  void take_names(const torch::nn::Module& whole);
  void require_stages(size_t cut, int stages) const;
  std::vector<size_t> decided_by_first(const std::vector<size_t>& own) const;
  ErasedModel keep_chunks(int local, std::vector<parallel::Stage> chunks);
  void keep(int local, Rank own);

  Strategy strategy_;
  parallel::ModelLayout layout_;
  mesh::Mesh mesh_;
  bool deals_out_ = false;  ///< whether a rank has other modules than the whole model's
  int64_t changes_ = 0;     ///< weights_changed()
  std::optional<nn::Graph> graph_;
  std::vector<parallel::StageRange> ranges_;  ///< of all stages
  std::vector<std::string> names_;            ///< of tensors, where there is no graph
  std::vector<size_t> cuts_;                  ///< of a Sequential, or a .pt2's places
  std::shared_ptr<ExportedModule> exported_;
  std::vector<parallel::TensorGroup> tensor_groups_;  ///< by local rank
  std::vector<Rank> ranks_;                           ///< by local rank
};

/// The modules of all local ranks, and of a world that `strategy` is resized to; `made` is told of
/// each.
ReplicatedModules dealt_out(const Strategy& strategy, std::shared_ptr<LaidOut> laid_out,
                            std::function<ErasedModel()> factory,
                            std::function<void(const ErasedModel&)> made);

}  // namespace detail
}  // namespace tutti
