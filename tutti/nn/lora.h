/// Lora: low-rank adapters beside a network whose weights stay as they are (LoRA, Hu et al. 2021,
/// arXiv:2106.09685), by patterns of names:
///
///   tutti::from_export("net.pt2", {.lora = {{.pattern = "*.attn.*", .rank = 8}}})
///   nn::make_module(models::gpt(), {{.pattern = "*.attn.*", .rank = 8}})
///
/// A matrix W [out, in] that a pattern fits becomes W + (alpha / rank) B A, with A [rank, in] and
/// B [out, rank]: these alone are trained, so that optimizer, gradients, checkpoints and what
/// replicas send have rank (in + out) numbers a matrix in place of in * out. B is 0 at first, so
/// that step 0 is the network as it was; A is drawn as Kaiming-uniform with a = sqrt(5), that is
/// uniformly within 1 / sqrt(in). docs/design/lora.md has what follows from it.
/// Without LibTorch. Thread rule: values, and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::nn {

class Graph;

struct Lora {
  /// Of the whole name of a parameter ("h.*.attn.c_attn.weight"), or of a module or group of
  /// modules that has it ("h.*.attn"): * any characters, ? any one. Of several the first that fits
  /// counts.
  std::string pattern;
  int64_t rank = 8;               ///< 1 or more, at most the smaller side of each matrix
  std::optional<double> alpha{};  ///< finite, above 0; unset: rank, so that B A is added as it is

  /// What B A is multiplied by.
  double scale() const;
};

/// "*.attn.*:rank=8,alpha=8": by it workers compare, and runs know, what they have.
std::string to_string(const Lora& lora);

/// A parameter that adapters may be for.
struct LoraCandidate {
  std::string name;
  std::vector<int64_t> shape;
  bool is_real = true;  ///< of a real floating type
};

/// A matrix with adapters: `name` is "block.up.weight".
struct LoraMatrix {
  std::string name;
  int64_t out = 0, in = 0;
  Lora lora;
  bool lies_transposed = false;  ///< W is [in, out], as GPT-2's Conv1D has it: (B A)^T is added

  /// As PEFT has them: "block.up.lora_A.weight"; of "attn.in_proj_weight", which is no layer's
  /// "weight", "attn.in_proj_weight.lora_A".
  std::string name_of_a() const, name_of_b() const;
  int64_t num_elements() const { return lora.rank * (in + out); }
  LoraMatrix turned() const { return {name, in, out, lora, !lies_transposed}; }
};

/// The parameters of a graph that are trained, those that its nodes share once.
std::vector<LoraCandidate> lora_candidates(const Graph& graph);

/// The matrices among `parameters` that get adapters, in their order; biases, norms and kernels of
/// convolutions, which are no matrices, get none. `of` is what has them ("net.pt2"). Sides are
/// taken as [out, in]: turned() is of one that lies the other way.
///
/// Throws UsageError, which begins with `lora "PATTERN"`: for a rank or alpha out of range, a
/// pattern that fits nothing (with the nearest names), fits no matrix, or fits none that an earlier
/// one has left, and for a rank that is more than a side.
std::vector<LoraMatrix> lora_matrices(const std::vector<Lora>& loras,
                                      const std::vector<LoraCandidate>& parameters,
                                      const std::string& of);

}  // namespace tutti::nn
