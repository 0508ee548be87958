/// What a job trains: a network of the zoo, or one that was written in Python, of a .pt2 file.
/// Without LibTorch. Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/checks.h"
#include "tutti/cli/data/spec.h"
#include "tutti/exported/from_export.h"
#include "tutti/nn/graph.h"
#include "tutti/nn/lora.h"
#include "tutti/ps/spec/placement.h"
#include "tutti/train/model/weights_found.h"

namespace tutti::cli {

/// One of the two.
struct Network {
  std::optional<nn::Graph> graph{};
  std::optional<FromExport> exported{};
  std::vector<nn::Lora> loras{};  ///< of the graph; an export has its own

  std::vector<nn::LoraMatrix> adapters() const;  ///< of either
  int64_t num_parameters() const;                ///< elements
  int64_t num_frozen() const;
  int64_t num_trained() const { return num_parameters() - num_frozen(); }
  std::vector<ps::Variable> variables() const;  ///< what is trained, by name
};

/// Whether MODEL is a file: it ends with ".pt2".
bool is_exported(const std::string& model);

/// from_export(), with adapters as --lora says them ("*.attn.*:rank=8,alpha=16"): UsageError, which
/// begins with the flag, for what is no such text or does not fit.
FromExport exported_from(const std::filesystem::path& path, FromExportOptions options,
                         const std::vector<std::string>& loras);

/// `graph` with adapters, as exported_from(); `model` is its name.
Network adapted_graph(nn::Graph graph, const std::string& model,
                      const std::vector<std::string>& loras);

/// What MODEL takes: a name of the zoo, gpt, or a file.
Check model_or_export();

/// What a .pt2 file says of the samples that it takes; UsageError where it takes several inputs.
struct ExportedSamples {
  bool of_text = false;        ///< whole numbers, [length] a sample
  std::vector<int64_t> shape;  ///< without the batch; -1: any
};
ExportedSamples samples_of(const FromExport& exported);

/// The last size of its first output; 0: it is not fixed.
int64_t num_outputs(const FromExport& exported);

/// UsageError where such a network does not take samples as `spec` has them, gives another number
/// of outputs than there are classes, or cannot be evaluated.
void check_exported(const FromExport& exported, const DataSpec& spec);

/// Copies the files there, under the names of weights_found.h, unless they are there.
void keep_exported(const FromExport& exported, const std::filesystem::path& folder);

/// The network that `weights` are of, as model_for_spec(), or of the file beside them; `typed` is a
/// file that was given instead, with NAME.eval.pt2 beside it where that is there and the file is
/// another one than that beside the weights; or anything else.
Network network_beside(const DataSpec& spec, const std::string& typed,
                       const std::filesystem::path& weights);

}  // namespace tutti::cli
