/// A Graph and its weights as ONNX: what other runtimes infer by.
///
///   nn::to_onnx(*module).write("net.onnx");
///
/// It computes what the module does in evaluation: dropout is gone, batch norms go by their running
/// statistics. Inputs and outputs are called as the graph calls them, and weights too; the first
/// dimension is "batch", of any size. docs/guide/from_python.md has a runtime's side.
/// Thread rule: that of the module, which is read; of the program.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/onnx/program.h"

namespace tutti::nn {

class GraphModule;

/// Parameters and buffers by their full names, float32 but for counters, which are not read.
using OnnxState = std::map<std::string, Array>;

/// Those of a module: views where they lie in a row on the CPU, which must not change until they
/// are written, else copies.
OnnxState onnx_state_of(const GraphModule& module);

/// Adds what the graph computes of `inputs`, one for each of graph.inputs(): [batch, shape...].
/// Gives a value for each of graph.outputs(). Throws UsageError for a parameter that is missing
/// from `state` or of another shape or dtype.
std::vector<onnx::Value> add_to(onnx::Program& program, const Graph& graph, const OnnxState& state,
                                const std::vector<onnx::Value>& inputs);

/// A program of the graph alone.
onnx::Program to_onnx(const Graph& graph, const OnnxState& state);
onnx::Program to_onnx(const GraphModule& module);

/// What goes into, or comes out of, a port of the graph: an input's own dtype, else float32.
onnx::Type onnx_type(const Graph& graph, const Port& port);

}  // namespace tutti::nn
