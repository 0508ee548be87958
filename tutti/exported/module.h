/// The module in a .pt2 file, as from_export() makes it. Thread rule: as any torch module, one
/// thread at a time; distinct modules are independent.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/adapted.h"
#include "tutti/pt2/program.h"

namespace tutti {

namespace exported::detail {
struct Loaded;
class Runner;
}  // namespace exported::detail

struct ExportedInput {
  pt2::Element element;
  std::vector<pt2::Size> sizes;
  std::string words;  ///< "float32 [s77, 3, 32, 32], s77: 2 to 512"
};

/// The module in a .pt2 file: a tree of modules with PyTorch's names, so that named_parameters()
/// and named_buffers() are those of Python, a tied weight under its first name alone. train() and
/// eval() choose the graph.
///
/// With adapters (FromExportOptions::lora) these are all the parameters that it has, under names as
/// "block.up.lora_A.weight": those of the file are base()'s (nn/adapted.h). A forward pass computes
/// W + scale B A of each such matrix, with autograd and in W's dtype, so that any operator may take
/// it.
class ExportedModule : public torch::nn::Module, public nn::Adapted {
 public:
  /// Not for users: from_export() makes them.
  explicit ExportedModule(std::shared_ptr<const exported::detail::Loaded> loaded);
  ExportedModule(const ExportedModule&) = delete;  ///< clone() gives one of its own
  ~ExportedModule() override;

  /// A tensor for each of input_names() gives one for each of output_names(). Throws UsageError for
  /// another number of tensors, dtype or shape than the graph was exported for: sizes that have a
  /// symbol may be any in its range, and are equal where the symbol is. In evaluation mode
  /// UsageError where no eval file was given and training's graph differs (Report).
  std::vector<at::Tensor> forward_all(at::ArrayRef<at::Tensor> inputs);
  /// Of a graph with one input and one output; UsageError for others.
  at::Tensor forward(const at::Tensor& x);
  /// By name, both. UsageError for names that are missing or unknown, with the nearest.
  std::map<std::string, at::Tensor> forward_named(const std::map<std::string, at::Tensor>& inputs);

  const std::vector<std::string>& input_names() const;
  const std::vector<std::string>& output_names() const;
  const pt2::Program& program() const;  ///< training's
  /// One for each of input_names(); the first size is usually that of the batch.
  std::vector<ExportedInput> input_shapes() const;
  /// As FromExport's.
  void require_evaluation() const;
  /// UsageError where a second forward of the same batch would do something else: change buffers,
  /// as running statistics, again.
  void require_repeatable() const;

  /// What workers compare, beside parameters and buffers: digests of the graphs, of each constant
  /// and each buffer that is not saved, and which parameters are frozen. By what it is of.
  std::map<std::string, std::string> facts() const;
  /// "ExportedModule(graph 4f1c...)", with a digest.
  void pretty_print(std::ostream& out) const override;
  /// A module of its own with equal parameters and buffers.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 protected:
  /// Of a part of it: what is said above of its files alone.
  class Part {
    explicit Part() = default;
    friend class ExportedCuts;
  };
  ExportedModule(Part, std::shared_ptr<const exported::detail::Loaded> loaded);

 private:
  friend class ExportedCuts;
  std::shared_ptr<const exported::detail::Loaded> loaded_;
  std::unique_ptr<exported::detail::Runner> training_, evaluation_;
};

}  // namespace tutti
