/// One stage of a pipeline at work: forward, backward and weight gradients of its microbatches, by
/// autograd, without messages. Not for users.
///
/// Thread rule: one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/nn/sample_context.h"
#include "tutti/nn/weight_gradients.h"
#include "tutti/parallel/stages/detail/channel.h"
#include "tutti/parallel/stages/pipeline.h"
#include "tutti/parallel/stages/stage.h"

namespace tutti::parallel::detail {

class StageRun {
 public:
  struct Place {
    int number = 0;  ///< of the stage
    int rank = 0;
    bool first = false, last = false;
  };
  /// `split`: weight() comes after backward().
  StageRun(Stage stage, Place place, bool split);

  const Stage& stage() const noexcept { return stage_; }
  const Place& place() const noexcept { return place_; }
  std::string name() const { return name_of_stage(place_.number, place_.rank); }

  /// What of the module is trained, each once, in its order; then tied copies that it does not
  /// have.
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  size_t num_of_module() const noexcept { return num_of_module_; }

  using Loss = std::function<at::Tensor(int microbatch, at::TensorList outputs)>;
  /// A batch begins: sizes and first rows of its microbatches, and, of the last stage, the loss.
  void begin(std::vector<int64_t> sizes, std::optional<nn::SamplePlace> place, Loss loss);

  /// F. Gives what the next stage gets; of the last one nothing.
  Parcel forward(int microbatch, Parcel inputs);
  /// B. Gradients of the outputs to those of the inputs; of the floating ones both.
  Parcel backward(int microbatch, Parcel of_outputs);
  /// After the last of a microbatch's actions, B or W: by parameter.
  std::vector<at::Tensor> gradients(int microbatch);

  /// Forward without gradients.
  Parcel evaluate(int microbatch, const Parcel& inputs);

 private:
  /// Of one span.
  struct Kept {
    std::vector<at::Tensor> inputs;
    int64_t calls = 0;                  // before this span
    at::Tensor drawn_from;              // with recompute: the generator, where F drew from it
    std::vector<at::Tensor> outputs;    // empty with recompute; of the last one the loss
    std::vector<at::Tensor> gradients;  // by parameter, from B
    std::optional<nn::WeightGradients> later;
  };
  bool begins(size_t span) const { return place_.first && span == 0; }
  bool ends(size_t span) const { return place_.last && span + 1 == stage_.spans.size(); }
  /// Of a span, with the loss behind the last one.
  Parcel compute(int microbatch, size_t span, const std::vector<at::Tensor>& inputs, int64_t calls);
  Parcel in_context(int microbatch, int64_t calls,
                    const std::function<std::vector<at::Tensor>()>& run);
  std::vector<at::Tensor> forward_of(int microbatch, size_t span,
                                     const std::vector<at::Tensor>& inputs) const;
  int64_t rows_before(int microbatch) const;
  std::vector<at::Tensor> loss_of(int microbatch, at::TensorList outputs) const;
  Parcel compute_from_kept(int microbatch, size_t span);
  Parcel forward_span(int microbatch, size_t span, Parcel inputs);
  Parcel backward_span(int microbatch, size_t span, Parcel of_outputs);
  void require_borders(int microbatch, const std::vector<at::Tensor>& outputs) const;

  Stage stage_;
  Place place_;
  bool split_;
  std::vector<at::Tensor> parameters_;
  size_t num_of_module_ = 0;

  std::vector<int64_t> sizes_;
  std::optional<nn::SamplePlace> sample_place_;
  Loss loss_;
  std::map<int, std::vector<Kept>> kept_;  // by microbatch, by span
};

}  // namespace tutti::parallel::detail
