/// Adapted: what modules with low-rank adapters (lora.h) have in common. A and B are their
/// parameters, all of them; what these stand beside is a module of its own, which no list of
/// parameters has. So optimizers, checkpoints and whatever else goes by parameters() sees a small
/// model. Thread rule: that of the module.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/nn/lora.h"

namespace tutti::nn {

/// base [out, in], a [rank, in], b [out, rank]; of one that lies transposed base is [in, out].
struct Adapter {
  at::Tensor base, a, b;
  double scale = 1;
  bool lies_transposed = false;

  /// base + scale * b a, with autograd; in base's dtype whatever autocast says: what is saved is
  /// what was computed with.
  at::Tensor sum() const;
};

class Adapted {
 public:
  virtual ~Adapted() = default;

  /// The parameters that no update changes, and whatever else they lie in; null without adapters.
  const std::shared_ptr<torch::nn::Module>& base() const noexcept { return base_; }
  const std::vector<LoraMatrix>& adapters() const noexcept { return matrices_; }
  /// base()'s parameters by their names, each once: with adapters sums in memory of their own,
  /// detached, the bits that a forward pass has.
  std::vector<std::pair<std::string, at::Tensor>> merged_parameters() const;
  void clear_adapters();  ///< B is 0: the network is base()'s

 protected:
  /// Freezes `base`'s parameters, draws A from LibTorch's default generator, and registers both in
  /// `home`. `matrices` are of base's parameters.
  void add_adapters(torch::nn::Module& home, std::shared_ptr<torch::nn::Module> base,
                    std::vector<LoraMatrix> matrices);
  /// One for each of adapters().
  const std::vector<Adapter>& parts() const noexcept { return parts_; }
  /// That of a tensor of the base; null: it has none.
  const Adapter* part_of(const at::Tensor& tensor) const;
  /// Makes the base that of `from`, which has the same adapters.
  void copy_base_of(const Adapted& from);

 private:
  std::shared_ptr<torch::nn::Module> base_;
  std::vector<LoraMatrix> matrices_;
  std::vector<Adapter> parts_;
};

}  // namespace tutti::nn
