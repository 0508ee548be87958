#include "tutti/exported/module.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <ostream>
#include <ranges>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/module_runner.h"
#include "tutti/exported/from_export.h"

namespace tutti {

using exported::detail::Loaded;
using exported::detail::ProgramFile;
using exported::detail::Runner;

ExportedModule::ExportedModule(std::shared_ptr<const Loaded> loaded)
    : torch::nn::Module("ExportedModule"), loaded_(std::move(loaded)) {
  std::map<std::string, at::Tensor> held;
  training_ = std::make_unique<Runner>(loaded_->training, held);
  std::shared_ptr<torch::nn::Module> base;
  if (!loaded_->adapters.empty()) base = std::make_shared<torch::nn::Module>("Base");
  std::map<const at::TensorImpl*, std::string> placed;
  exported::detail::Places places, places_of_base;
  for (const pt2::InputSpec& spec : loaded_->training.program.inputs) {
    const auto found = held.find(spec.target);
    const bool is_parameter = spec.kind == pt2::InputSpec::Kind::parameter;
    if (found == held.end() || (!is_parameter && !spec.persistent)) continue;
    if (!placed.emplace(found->second.unsafeGetTensorImpl(), spec.target).second) continue;
    const bool stays = is_parameter && base;
    exported::detail::place(stays ? *base : *this, stays ? places_of_base : places, spec.target,
                            found->second, is_parameter);
  }
  if (loaded_->evaluation) evaluation_ = std::make_unique<Runner>(*loaded_->evaluation, held);
  if (!base) return;
  add_adapters(*this, std::move(base), loaded_->adapters);
  training_->adapt(parts());
  if (evaluation_) evaluation_->adapt(parts());
}

ExportedModule::ExportedModule(Part /*part*/, std::shared_ptr<const Loaded> loaded)
    : torch::nn::Module("ExportedStage"), loaded_(std::move(loaded)) {}

ExportedModule::~ExportedModule() = default;

void ExportedModule::require_evaluation() const { exported::detail::require_evaluation(*loaded_); }

void ExportedModule::require_repeatable() const {
  const auto& [archive, program, report, plan, output_names, digest, constants] = loaded_->training;
  for (const auto& call : plan->calls | std::views::reverse)  // a norm's counter comes before it
    for (const int root : call.writes) {
      const auto input =
          static_cast<size_t>(std::ranges::find(plan->inputs, root) - plan->inputs.begin());
      if (input < plan->inputs.size() && program.inputs[input].kind != pt2::InputSpec::Kind::user)
        throw UsageError(fmt::format(
            "recompute: {} writes to {}, so that a second forward would not be the first: leave "
            "recompute off",
            call.words, program.inputs[input].target));
    }
}

void ExportedModule::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  Module::to(device, dtype, non_blocking);
  if (base()) base()->to(device, dtype, non_blocking);
}
void ExportedModule::to(torch::Dtype dtype, bool non_blocking) {
  Module::to(dtype, non_blocking);
  if (base()) base()->to(dtype, non_blocking);
}
void ExportedModule::to(torch::Device device, bool non_blocking) {
  Module::to(device, non_blocking);
  if (base()) base()->to(device, non_blocking);
}

std::vector<at::Tensor> ExportedModule::forward_all(at::ArrayRef<at::Tensor> inputs) {
  if (!training_)
    throw UsageError("forward: this module is a part of a network that several ranks compute");
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

std::map<std::string, std::string> ExportedModule::facts() const {
  std::map<std::string, std::string> facts;
  const auto add = [&](const ProgramFile& file, const std::string& which) {
    facts["graph" + which] = file.digest;
    for (const auto& [name, digest] : file.constant_digests)
      facts[fmt::format("constant \"{}\"{}", name, which)] = digest;
  };
  add(loaded_->training, "");
  if (loaded_->evaluation) add(*loaded_->evaluation, " of evaluation");
  std::vector<std::string> frozen;
  if (training_) {
    for (const auto& parameter : named_parameters())
      if (!parameter.value().requires_grad()) frozen.push_back(parameter.key());
  } else {
    for (const std::string& name : program().order)
      if (const pt2::StoredTensor& tensor = program().tensors.at(name);
          tensor.is_parameter && !tensor.meta.requires_grad)
        frozen.push_back(name);
  }
  facts["frozen"] = fmt::format("{}", fmt::join(frozen, ", "));
  return facts;
}

void ExportedModule::pretty_print(std::ostream& out) const {
  out << "ExportedModule(graph " << loaded_->training.digest;
  if (loaded_->evaluation) out << ", of evaluation " << loaded_->evaluation->digest;
  for (const nn::LoraMatrix& matrix : adapters())
    out << ", " << matrix.name << " with rank " << matrix.lora.rank << ", scale "
        << matrix.lora.scale();
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
  copy->copy_base_of(*this);
  take(copy->named_buffers(), named_buffers());
  copy->train(is_training());
  if (device) copy->to(*device);
  return copy;
}

FromExport::FromExport(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}

std::shared_ptr<ExportedModule> FromExport::operator()() const {
  return std::make_shared<ExportedModule>(loaded_);
}
const pt2::Program& FromExport::program() const { return loaded_->training.program; }
const pt2::Program* FromExport::evaluation() const {
  return loaded_->evaluation ? &loaded_->evaluation->program : nullptr;
}
const std::filesystem::path& FromExport::path() const { return loaded_->training.archive.path(); }
std::filesystem::path FromExport::evaluation_path() const {
  return loaded_->evaluation ? loaded_->evaluation->archive.path() : std::filesystem::path();
}
const std::vector<nn::LoraMatrix>& FromExport::adapters() const { return loaded_->adapters; }
void FromExport::require_evaluation() const { exported::detail::require_evaluation(*loaded_); }

FromExport from_export(const std::filesystem::path& path, const FromExportOptions& options) {
  Loaded loaded{.training = ProgramFile(path), .evaluation = std::nullopt, .adapters = {}};
  if (!options.freeze.empty() && !options.lora.empty())
    throw UsageError("from_export: freeze beside lora: all but the adapters stay as they are");
  if (!options.freeze.empty()) exported::detail::freeze(loaded.training, options.freeze);
  if (!options.eval.empty()) {
    loaded.evaluation.emplace(options.eval);
    exported::detail::require_same_model(loaded.training, *loaded.evaluation);
    exported::detail::say_if_not_of_evaluation(*loaded.evaluation);
  }
  if (!options.lora.empty()) loaded.adapters = exported::detail::adapters_of(loaded, options.lora);
  return FromExport(std::make_shared<const Loaded>(std::move(loaded)));
}

}  // namespace tutti
