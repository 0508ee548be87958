/// nn::Recurrent: LSTM and GRU over sequences, with masks. What nn::lstm() and nn::gru() run.
///
/// Parameters have the names, shapes and initial values of torch::nn::LSTM and torch::nn::GRU,
/// whose state dicts load; equations are theirs, from a state of zeros. A step that a mask leaves
/// out keeps the state and gives zeros: what is given is that of the steps that are there, each
/// sample alone. Products of all steps with the input are one, and so are gradients of weights; all
/// layers are one node of autograd. Computed in the parameters' precision, under autocast too; in
/// float32 on the CPU a step is one product and one kernel (kernels/cells.h).
/// Thread rule: that of a torch module; functions are pure.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace tutti::nn {

enum class RecurrentCell : uint8_t { lstm, gru };

struct RecurrentOptions {
  RecurrentCell cell = RecurrentCell::lstm;
  int64_t features = 1;        ///< of a step, >= 1
  int64_t units = 1;           ///< >= 1
  int64_t layers = 1;          ///< >= 1
  bool bidirectional = false;  ///< one forward and one backward, side by side
  bool sequences = false;      ///< gives all steps
};

class RecurrentImpl : public torch::nn::Module {
 public:
  /// UsageError for a number below 1.
  explicit RecurrentImpl(const RecurrentOptions& options);

  /// x      [batch, length, features], floating
  /// steps  boolean [batch, length], which there are; undefined: all
  ///
  /// Gives [batch, length, directions * units], zeros at steps that there are not; or, without
  /// `sequences`, the last state of each direction, [batch, directions * units]. UsageError for
  /// other shapes, and for a backward pass with create_graph.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& steps = {});

  const RecurrentOptions& options() const noexcept { return options_; }

  /// Of each layer, forward before backward, weight_ih, weight_hh, bias_ih and bias_hh.
  const std::vector<at::Tensor>& weights() const noexcept { return weights_; }

 private:
  void add(const std::string& name, at::IntArrayRef shape);

  RecurrentOptions options_;
  std::vector<at::Tensor> weights_;
};
TORCH_MODULE(Recurrent);

/// Which steps there are, as RecurrentImpl takes them.
///
/// given   [batch, length], 1 or 0; or [batch, 1], how many there are; of any dtype
/// length  of the sequences
/// who     "lstm \"strokes\"", for errors
///
/// Of sequences of one step both are the same. RowError as require_steps(), on the CPU alone.
at::Tensor steps_of_sequences(const at::Tensor& given, int64_t length, const std::string& who);

/// The same `given`, on the CPU: RowError that names the first row with another number, and its
/// place.
void require_steps(const at::Tensor& given, int64_t length, const std::string& who);

}  // namespace tutti::nn
