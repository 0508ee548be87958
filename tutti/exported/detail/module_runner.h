/// Graphs with the tensors of one module: all of it, or a part between two cuts. Not for users.
/// Thread rule: one thread at a time.
#pragma once

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/exported/cut_graph.h"
#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/runner.h"
#include "tutti/nn/adapted.h"

namespace tutti::exported::detail {

/// Modules by their whole names.
using Places = std::map<std::string, torch::nn::Module*>;

/// Puts a parameter or buffer where its name says, with the modules on the way.
inline void place(torch::nn::Module& root, Places& places, const std::string& name,
                  const at::Tensor& tensor, bool is_parameter) {
  torch::nn::Module* module = &root;
  size_t from = 0;
  for (size_t dot = 0; (dot = name.find('.', from)) != name.npos; from = dot + 1) {
    auto& child = places[name.substr(0, dot)];
    if (child == nullptr)
      child = module
                  ->register_module(name.substr(from, dot - from),
                                    std::make_shared<torch::nn::Module>())
                  .get();
    module = child;
  }
  if (is_parameter)
    module->register_parameter(name.substr(from), tensor, tensor.requires_grad());
  else
    module->register_buffer(name.substr(from), tensor);
}

/// A graph with the tensors of one module.
class Runner {
 public:
  /// `held` has parameters and buffers by name; what of them the file alone knows (constants,
  /// buffers that no state dict has) is made of it, and put into `held`.
  Runner(const ProgramFile& file, std::map<std::string, at::Tensor>& held) : file_(file) {
    TensorMaker maker(file);
    for (const pt2::InputSpec& spec : file.program.inputs) {
      at::Tensor tensor;
      if (spec.kind == pt2::InputSpec::Kind::constant) {
        tensor = maker.make(spec.target);
      } else if (spec.kind != pt2::InputSpec::Kind::user &&
                 spec.kind != pt2::InputSpec::Kind::fixed) {
        at::Tensor& own = held[spec.target];
        if (!own.defined()) own = maker.make(spec.target);
        tensor = own;
      }
      tensors_.push_back(std::move(tensor));
    }
    for (const size_t input : file.plan->perhaps_written)
      if (file.program.inputs[input].kind == pt2::InputSpec::Kind::user) copied_.push_back(input);
  }

  void adapt(const std::vector<nn::Adapter>& adapters) {
    adapters_ = adapters;
    for (const at::Tensor& tensor : tensors_)
      adapter_of_.push_back(static_cast<size_t>(
          std::ranges::find_if(adapters,
                               [&](const nn::Adapter& one) { return one.base.is_same(tensor); }) -
          adapters.begin()));
  }

  std::vector<at::Tensor> run(at::ArrayRef<at::Tensor> inputs) {
    check_inputs(file_.program, inputs);
    const c10::Device device = device_for(inputs);
    std::vector<c10::IValue> values;
    values.reserve(tensors_.size());
    std::vector<at::Tensor> sums;  // of a tied weight one
    for (const nn::Adapter& adapter : adapters_) sums.push_back(adapter.sum());
    size_t next = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (file_.program.inputs[i].kind == pt2::InputSpec::Kind::user) {
        values.emplace_back(inputs[next++]);
      } else if (!sums.empty() && adapter_of_[i] < sums.size()) {
        values.emplace_back(sums[adapter_of_[i]]);
      } else {
        follow(i, device);
        values.emplace_back(tensors_[i].defined() ? c10::IValue(tensors_[i]) : c10::IValue());
      }
    }
    // The caller's memory may be that of a dataset.
    for (const size_t i : copied_) values[i] = values[i].toTensor().clone();
    std::vector<at::Tensor> outputs;
    for (const c10::IValue& value : run_calls(*file_.plan, std::move(values), device))
      if (value.isTensor()) outputs.push_back(value.toTensor());
    return outputs;
  }

  const ProgramFile& file() const { return file_; }
  /// By input of the graph; undefined for the user's.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  c10::Device device_for(at::ArrayRef<at::Tensor> inputs) const {
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (file_.program.inputs[i].kind == pt2::InputSpec::Kind::parameter)
        return tensors_[i].device();
    return inputs.empty() ? c10::Device(c10::kCPU) : inputs.front().device();
  }

  /// to() moves what the module has; constants come along here.
  void follow(size_t input, c10::Device device) {
    const pt2::InputSpec& spec = file_.program.inputs[input];
    const bool is_own = spec.kind == pt2::InputSpec::Kind::constant ||
                        (spec.kind == pt2::InputSpec::Kind::buffer && !spec.persistent);
    if (is_own && tensors_[input].device() != device) tensors_[input] = tensors_[input].to(device);
  }

  const ProgramFile& file_;
  std::vector<at::Tensor> tensors_;  // one for each input of the graph; undefined for the user's
  std::vector<size_t> copied_;       // inputs that the graph changes in place, or may
  std::vector<nn::Adapter> adapters_;
  std::vector<size_t> adapter_of_;  // of each input of the graph; beyond the last: none
};

/// Calls from one cut to the next.
class PartRunner {
 public:
  /// With the tensors of `whole`, or those that stand for them in `copies`.
  PartRunner(const Runner& whole, const CutGraph& graph, size_t begin, size_t end,
             const std::map<const at::TensorImpl*, at::Tensor>& copies)
      : file_(whole.file()), is_first_(begin == 0) {
    const CutPart part = graph.part(begin, end);
    plan_ = plan_of(file_, graph, part, end == graph.calls().size());
    for (const int input : part.inputs) {
      has_gradient_.push_back(graph.has_gradient(input));
      is_copied_.push_back(is_first_ && file_.plan->perhaps_written.contains(number_of(input)));
    }
    for (const int held : part.held) {
      const at::Tensor& own = whole.tensors()[number_of(held)];
      const auto copy = copies.find(own.unsafeGetTensorImpl());
      held_.push_back(copy == copies.end() ? own : copy->second);
    }
  }

  const std::vector<at::Tensor>& held() const { return held_; }

  std::vector<at::Tensor> run(at::TensorList inputs) const {
    if (is_first_) check_inputs(file_.program, inputs);
    std::vector<c10::IValue> values;
    for (size_t i = 0; i < has_gradient_.size(); ++i) values.emplace_back(taken(inputs, i));
    for (const at::Tensor& tensor : held_) values.emplace_back(tensor);
    std::vector<at::Tensor> outputs;
    for (const c10::IValue& value : run_calls(*plan_, std::move(values), c10::kCPU))
      if (value.isTensor()) outputs.push_back(value.toTensor());
    return outputs;
  }

 private:
  /// Of an input of the graph, by its slot.
  size_t number_of(int slot) const {
    return static_cast<size_t>(std::ranges::find(file_.plan->inputs, slot) -
                               file_.plan->inputs.begin());
  }

  /// Kernels ask what they are given whether it wants a gradient: as it would without a cut.
  at::Tensor taken(at::TensorList inputs, size_t number) const {
    const at::Tensor& input = inputs.at(number);
    if (is_copied_[number]) return input.clone();
    if (is_first_ || !input.requires_grad()) return input;
    if (!has_gradient_[number]) return input.detach();
    if (at::GradMode::is_enabled()) give_gradient_its_order(input);
    return input;
  }

  /// One that repeats elements in memory would become contiguous where it is sent: operators take
  /// such as if it lay as the value does.
  static void give_gradient_its_order(const at::Tensor& input) {
    input.register_hook(
        [sizes = input.sizes().vec(), strides = input.strides().vec()](const at::Tensor& gradient) {
          if (!gradient.defined() || gradient.is_non_overlapping_and_dense()) return gradient;
          return at::empty_strided(sizes, strides, gradient.options()).copy_(gradient);
        });
  }

  const ProgramFile& file_;
  bool is_first_;
  std::shared_ptr<const CallPlan> plan_;
  std::vector<bool> has_gradient_, is_copied_;  // by input
  std::vector<at::Tensor> held_;
};

}  // namespace tutti::exported::detail
