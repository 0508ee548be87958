#include "tutti/exported/module.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/runner.h"
#include "tutti/exported/from_export.h"

namespace tutti {
namespace exported::detail {
namespace {

/// Puts a parameter or buffer where its name says, with the modules on the way.
void place(torch::nn::Module& root, const std::string& name, const at::Tensor& tensor,
           bool is_parameter) {
  torch::nn::Module* module = &root;
  size_t from = 0;
  for (size_t dot = 0; (dot = name.find('.', from)) != name.npos; from = dot + 1) {
    const std::string step = name.substr(from, dot - from);
    const auto children = module->named_children();
    const auto* child = children.find(step);
    module = child != nullptr
                 ? child->get()
                 : module->register_module(step, std::make_shared<torch::nn::Module>()).get();
  }
  if (is_parameter)
    module->register_parameter(name.substr(from), tensor, tensor.requires_grad());
  else
    module->register_buffer(name.substr(from), tensor);
}

}  // namespace

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
    for (const size_t input : file.plan->written_inputs)
      if (file.program.inputs[input].kind == pt2::InputSpec::Kind::user) copied_.push_back(input);
  }

  std::vector<at::Tensor> run(at::ArrayRef<at::Tensor> inputs) {
    check_inputs(file_.program, inputs);
    const c10::Device device = device_for(inputs);
    std::vector<c10::IValue> values;
    values.reserve(tensors_.size());
    size_t next = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (file_.program.inputs[i].kind == pt2::InputSpec::Kind::user) {
        values.emplace_back(inputs[next++]);
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
  std::vector<size_t> copied_;       // inputs that the graph changes in place
};

}  // namespace exported::detail

using exported::detail::Loaded;
using exported::detail::ProgramFile;
using exported::detail::Runner;

ExportedModule::ExportedModule(std::shared_ptr<const Loaded> loaded)
    : torch::nn::Module("ExportedModule"), loaded_(std::move(loaded)) {
  std::map<std::string, at::Tensor> held;
  training_ = std::make_unique<Runner>(loaded_->training, held);
  std::map<const at::TensorImpl*, std::string> placed;
  for (const pt2::InputSpec& spec : loaded_->training.program.inputs) {
    const auto found = held.find(spec.target);
    const bool is_parameter = spec.kind == pt2::InputSpec::Kind::parameter;
    if (found == held.end() || (!is_parameter && !spec.persistent)) continue;
    if (placed.emplace(found->second.unsafeGetTensorImpl(), spec.target).second)
      exported::detail::place(*this, spec.target, found->second, is_parameter);
  }
  if (loaded_->evaluation) evaluation_ = std::make_unique<Runner>(*loaded_->evaluation, held);
}

ExportedModule::~ExportedModule() = default;

void ExportedModule::require_evaluation() const { exported::detail::require_evaluation(*loaded_); }

void ExportedModule::require_repeatable() const {
  const auto& differences = loaded_->training.report.differs_in_evaluation;
  if (differences.empty()) return;
  throw UsageError(
      fmt::format("recompute: {} {}, so that a second forward would not be the first: leave "
                  "recompute off\n  {}",
                  differences.front().name, differences.front().reason, differences.front().line));
}

std::vector<at::Tensor> ExportedModule::forward_all(at::ArrayRef<at::Tensor> inputs) {
  if (is_training()) return training_->run(inputs);
  require_evaluation();
  return (evaluation_ ? *evaluation_ : *training_).run(inputs);
}

at::Tensor ExportedModule::forward(const at::Tensor& x) {
  auto outputs = forward_all(x);
  if (outputs.size() != 1)
    throw UsageError(fmt::format("forward: the model gives {} tensors ({}): call forward_all()",
                                 outputs.size(), fmt::join(output_names(), ", ")));
  return std::move(outputs.front());
}

std::map<std::string, at::Tensor> ExportedModule::forward_named(
    const std::map<std::string, at::Tensor>& inputs) {
  for (const auto& [name, tensor] : inputs)
    if (std::ranges::find(input_names(), name) == input_names().end())
      throw UsageError("forward: " + unknown_message("input", name, input_names()));
  std::vector<at::Tensor> given;
  for (const std::string& name : input_names()) {
    const auto found = inputs.find(name);
    if (found == inputs.end())
      throw UsageError(fmt::format("forward: input \"{}\" is missing; the model takes {}", name,
                                   fmt::join(input_names(), ", ")));
    given.push_back(found->second);
  }
  auto outputs = forward_all(given);
  std::map<std::string, at::Tensor> named;
  for (size_t i = 0; i < outputs.size(); ++i) named[output_names().at(i)] = std::move(outputs[i]);
  return named;
}

const std::vector<std::string>& ExportedModule::input_names() const {
  return loaded_->training.program.input_names;
}
const std::vector<std::string>& ExportedModule::output_names() const {
  const bool other = !is_training() && loaded_->evaluation;
  return (other ? *loaded_->evaluation : loaded_->training).output_names;
}
const pt2::Program& ExportedModule::program() const { return loaded_->training.program; }

std::vector<ExportedInput> ExportedModule::input_shapes() const {
  std::vector<ExportedInput> inputs;
  for (const pt2::TensorMeta* meta : exported::detail::user_inputs(program()))
    inputs.push_back({meta->element, meta->sizes, exported::detail::input_words(program(), *meta)});
  return inputs;
}

void ExportedModule::pretty_print(std::ostream& out) const {
  out << "ExportedModule(graph " << loaded_->training.digest;
  if (loaded_->evaluation) out << ", of evaluation " << loaded_->evaluation->digest;
  out << ")";
}

std::shared_ptr<torch::nn::Module> ExportedModule::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<ExportedModule>(loaded_);
  const at::NoGradGuard no_grad;
  const auto take = [](const auto& to, const auto& from) {
    for (const auto& item : from) {
      at::Tensor tensor = *to.find(item.key());
      tensor.copy_(item.value());
      if (tensor.is_leaf() && tensor.is_floating_point())
        tensor.set_requires_grad(item.value().requires_grad());
    }
  };
  take(copy->named_parameters(), named_parameters());
  take(copy->named_buffers(), named_buffers());
  copy->train(is_training());
  if (device) copy->to(*device);
  return copy;
}

}  // namespace tutti
