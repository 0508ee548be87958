/// from_export(): trains a network that was written in Python.
///
///   Model model(strategy, tutti::from_export("net.pt2", {.eval = "net.eval.pt2"}));
///
/// In Python, once: `python -m tutti.export` writes both files from a module and example inputs.
/// No Python is needed here: LibTorch's operators are called as the graph in the file says, with
/// autograd on. docs/design/exported.md says what is served and why.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/exported/report.h"
#include "tutti/nn/lora.h"
#include "tutti/pt2/program.h"

namespace tutti {

class ExportedModule;

namespace exported::detail {
struct Loaded;
}  // namespace exported::detail

struct FromExportOptions {
  /// The same module exported in evaluation mode. It shares parameters and buffers: those of
  /// training's file count, those here are only compared by name, shape and dtype. Empty: the graph
  /// of training serves evaluation where nothing in it differs (no dropout, no batch norm, nothing
  /// random, no buffer that changes), which Python's `if self.training` is not seen by.
  std::filesystem::path eval{};
  /// Low-rank adapters, which are then all that is trained: parameters of the file, all of them,
  /// stay as they are. Graphs of training and of evaluation have them alike. A tied weight is there
  /// under its first name.
  std::vector<nn::Lora> lora{};
  /// Parameters that stay as they are, as requires_grad_(False) before the export: whole names
  /// ("*" any characters, "?" any one), or those of modules that they are in. A batch norm that is
  /// frozen goes on as the graph says.
  std::vector<std::string> freeze{};
};

/// Makes modules of one file: a factory as Model, Replicated and programs of one's own take it.
/// Cheap to copy. Thread rule: calls from one thread at a time.
class FromExport {
 public:
  /// With values from the file, on the CPU.
  std::shared_ptr<ExportedModule> operator()() const;

  const pt2::Program& program() const;
  const pt2::Program* evaluation() const;  ///< null: no eval file
  const std::filesystem::path& path() const;
  std::filesystem::path evaluation_path() const;  ///< empty: no eval file
  const std::vector<nn::LoraMatrix>& adapters()
      const;  ///< empty: the file's parameters are trained
  /// UsageError, with the first node that differs and its line, where evaluation mode throws.
  void require_evaluation() const;

 private:
  friend FromExport from_export(const std::filesystem::path&, const FromExportOptions&);
  explicit FromExport(std::shared_ptr<const exported::detail::Loaded> loaded);
  std::shared_ptr<const exported::detail::Loaded> loaded_;
};

/// Reads and checks the file, all of it: checksums, the graph, its operators. Throws DataError for
/// a file that is damaged or no such program (tutti/pt2), and for an eval file of another model;
/// UsageError for operators that are not served, each with its Python line, for a pattern that fits
/// no parameter, and where all are frozen; for adapters what nn::lora_matrices() throws, and where
/// the graph writes to a parameter by itself.
FromExport from_export(const std::filesystem::path& path, const FromExportOptions& options = {});

}  // namespace tutti
