/// A .pt2 file and, where there is one, that of evaluation: read, checked and planned.
/// Thread rule: const once made; replicas share one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/exported/cut_graph.h"
#include "tutti/exported/detail/call_plan.h"
#include "tutti/exported/report.h"
#include "tutti/nn/lora.h"
#include "tutti/pt2/archive.h"
#include "tutti/pt2/program.h"

namespace tutti::exported::detail {

struct ProgramFile {
  /// Throws what from_export() does for one file; checks every record that it uses.
  explicit ProgramFile(const std::filesystem::path& path);

  pt2::Archive archive;
  pt2::Program program;
  Report report;
  std::shared_ptr<const CallPlan> plan;
  std::vector<std::string> output_names;  ///< of outputs that are tensors
  std::string digest;  ///< of the graph, without tensors: by it workers know that they have one
  /// Of the tensors that no state dict has: constants, and buffers that are not saved.
  std::map<std::string, std::string> constant_digests;
};

struct Loaded {
  ProgramFile training;
  std::optional<ProgramFile> evaluation;
  std::vector<nn::LoraMatrix> adapters;  ///< in the order of training's parameters
};

/// Which parameters get adapters; UsageError as from_export() throws it.
std::vector<nn::LoraMatrix> adapters_of(const Loaded& loaded, const std::vector<nn::Lora>& loras);

/// DataError, with the first difference, unless all parameters and buffers of `evaluation` are
/// those of `training` by name, shape and dtype, and both take as many inputs, and give the same
/// dictionary where they give one.
void require_same_model(const ProgramFile& training, const ProgramFile& evaluation);

/// Parameters whose whole name fits one of `patterns`, or that are in a module whose name does,
/// have no gradient from now on, under all their names. UsageError for a pattern that fits none,
/// and where nothing is left to train.
void freeze(ProgramFile& training, const std::vector<std::string>& patterns);

/// A warning where a graph of evaluation has dropout, batch statistics or writes: it may be that of
/// training.
void say_if_not_of_evaluation(const ProgramFile& evaluation);

/// The same for stored tensors that are one.
std::string place_words(const pt2::StoredTensor& tensor);

/// Its calls as those who cut it see them. `sizes`: of symbols besides the batch's. It reads
/// `file`.
CutGraph cut_graph_of(const ProgramFile& file, std::map<std::string, int64_t> sizes);
/// Its plan of a part of that graph, which takes the part's inputs and then what it holds.
std::shared_ptr<const CallPlan> plan_of(const ProgramFile& file, const CutGraph& graph,
                                        const CutPart& part, bool is_last);

/// UsageError where evaluation mode has no graph: there is no eval file, and training's graph
/// differs from it.
void require_evaluation(const Loaded& loaded);

/// Makes tensors of a file, each record once: those that shared a storage in Python do so here.
class TensorMaker {
 public:
  explicit TensorMaker(const ProgramFile& file) : file_(file) {}
  /// Tied ones, which are the same place of the same record, are one tensor.
  at::Tensor make(const std::string& name);

 private:
  c10::Storage storage_of(const std::string& record);

  const ProgramFile& file_;
  std::map<std::string, c10::Storage> storages_;
  std::map<std::string, at::Tensor> made_;
};

/// UsageError for a number, dtype or shape of inputs that the program was not exported for.
void check_inputs(const pt2::Program& program, at::ArrayRef<at::Tensor> inputs);

/// "float32 [s77, 3, 32, 32] (s77: 2 to 512)".
std::string input_words(const pt2::Program& program, const pt2::TensorMeta& meta);

/// The user's inputs that are values: their metas, in order.
std::vector<const pt2::TensorMeta*> user_inputs(const pt2::Program& program);

}  // namespace tutti::exported::detail
