/// A program of PyTorch's as ONNX: what is in a .pt2 file of module.eval(), with its weights or
/// with those that were trained here.
///
///   exported::to_onnx("net.eval.pt2", weights).write("net.onnx");
///
/// Inputs and outputs have the file's names; the first size of the first input is "batch", others
/// that have a symbol keep it. docs/design/exported.md says which operators there are.
/// Thread rule: pure functions of the disk; a ForOnnx is const once made.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/exported/report.h"
#include "tutti/onnx/program.h"

namespace tutti::exported {

namespace detail {
struct ProgramFile;
}

/// Nodes that have no counterpart in ONNX here, with the reason and the line of Python; each
/// operator once.
std::vector<NotServed> not_in_onnx(const pt2::Program& program);

/// Tensors by name: in place of the file's.
using OnnxValues = std::map<std::string, at::Tensor>;

/// A file that is to be part of a program.
class ForOnnx {
 public:
  /// Throws what from_export() does; UsageError that lists not_in_onnx().
  explicit ForOnnx(const std::filesystem::path& file);

  const std::vector<onnx::Port>& inputs() const noexcept { return inputs_; }
  const std::vector<onnx::Port>& outputs() const noexcept { return outputs_; }

  /// Adds what the file computes of `inputs`, one for each of inputs(); gives one for each of
  /// outputs(). UsageError that names a node whose arguments cannot be said; DataError for values
  /// of another shape or dtype than the file's.
  std::vector<onnx::Value> add_to(onnx::Program& program, const std::vector<onnx::Value>& inputs,
                                  const OnnxValues& values = {}) const;

 private:
  std::shared_ptr<const detail::ProgramFile> file_;
  std::vector<onnx::Port> inputs_, outputs_;
};

/// A program of the file alone.
onnx::Program to_onnx(const std::filesystem::path& file, const OnnxValues& values = {});

}  // namespace tutti::exported
