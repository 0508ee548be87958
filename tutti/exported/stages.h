/// Stages of a network of a .pt2 file: its calls from one cut to the next, with the parameters and
/// buffers that they read first. Not for users: Model makes them (docs/design/exported.md).
/// Thread rule: that of the module; ExportedCuts, one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/exported/cut_graph.h"
#include "tutti/exported/module.h"

namespace tutti {

/// A parameter that two stages read.
struct ExportedTie {
  std::string name;
  at::Tensor parameter;  ///< the owner's, or the reader's copy
  int owner = 0, reader = 0;
};

/// A stage has the tensors that its calls are the first to read, under their names; the first also
/// those that nobody reads. forward_all() and its like are UsageErrors.
class ExportedStage : public ExportedModule {
 public:
  using Forward = std::function<std::vector<at::Tensor>(at::TensorList)>;

  /// ExportedCuts::stage() makes them.
  ExportedStage(Part part, std::shared_ptr<const exported::detail::Loaded> loaded)
      : ExportedModule(part, std::move(loaded)) {}

  /// clone() of a part is a UsageError.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  std::vector<exported::CutBorder> inputs, outputs;  ///< none: the first, the last
  std::vector<ExportedTie> ties;
  Forward forward_part;  ///< lives as long as the stage

 private:
  friend class ExportedCuts;
  std::map<const at::TensorImpl*, at::Tensor> copies_;  ///< of tied parameters, by the owner's
  std::map<std::string, torch::nn::Module*> places_;    ///< modules by their whole names
};

class ExportedCuts {
 public:
  /// `sample`: sizes of a row of the first input, which stand for those that may change from batch
  /// to batch. UsageError for a network with adapters.
  explicit ExportedCuts(std::shared_ptr<const ExportedModule> whole,
                        const std::optional<std::vector<int64_t>>& sample = {});

  /// Whether sizes besides the batch's may change, so that a sample has to say them.
  static bool needs_sample(const ExportedModule& whole);

  const exported::CutPlaces& places() const noexcept { return places_; }
  const exported::CutGraph& training() const noexcept { return training_; }
  const ExportedModule& whole() const noexcept { return *whole_; }
  /// The beginning and the end.
  exported::CutPlace begin() const { return {}; }
  exported::CutPlace end() const;

  /// UsageError where the graph of evaluation draws random numbers: `why` says of what that is the
  /// matter.
  void require_certain_evaluation(std::string_view why) const;
  /// UsageError where a buffer is written to.
  void require_no_writes(const exported::CutPlace& from, const exported::CutPlace& to,
                         std::string_view why) const;

  /// The stage from cuts[stage] to cuts[stage + 1]; the first cut is begin(), the last end().
  /// UsageError for parameters that three stages read, or the first of two more than once, since
  /// their gradients would be added in another order.
  std::shared_ptr<ExportedStage> stage(const std::vector<exported::CutPlace>& cuts,
                                       int stage) const;
  /// Calls of a stage between two cuts in it. Lives as long as the stage.
  ExportedStage::Forward part_of(const ExportedStage& stage, const exported::CutPlace& from,
                                 const exported::CutPlace& to) const;

 private:
  void take_parameter(ExportedStage& stage, const std::vector<exported::CutPlace>& cuts, int number,
                      const std::string& name, const at::Tensor& tensor, bool is_parameter) const;
  int value_of(const at::Tensor& tensor) const;
  void require_own(const ExportedStage& stage, const std::vector<at::Tensor>& held) const;

  std::shared_ptr<const ExportedModule> whole_;
  exported::CutGraph training_;
  std::optional<exported::CutGraph> evaluation_;
  exported::CutPlaces places_;
};

}  // namespace tutti
