#include "tutti/cli/train/network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/cli/fields.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/text_models.h"
#include "tutti/train/model/detail/graph_file.h"

namespace tutti::cli {
namespace {

std::vector<std::string> trained_names(const pt2::Program& program, bool trained) {
  std::vector<std::string> names;
  for (const std::string& name : program.order) {
    const pt2::StoredTensor& tensor = program.tensors.at(name);
    if (tensor.is_parameter && tensor.meta.requires_grad == trained) names.push_back(name);
  }
  return names;
}

std::vector<int64_t> shape_of(const pt2::StoredTensor& tensor) {
  std::vector<int64_t> shape;
  for (const pt2::Size& size : tensor.meta.sizes) shape.push_back(size.value);
  return shape;
}

const pt2::TensorMeta& meta_of_input(const FromExport& exported) {
  const pt2::Program& program = exported.program();
  if (program.input_names.size() != 1)
    throw UsageError(fmt::format(
        "MODEL {}: takes {} inputs ({}); data of the command line has one\n  a program trains it: "
        "Model model(strategy, tutti::from_export(...))",
        exported.path().string(), program.input_names.size(),
        fmt::join(program.input_names, ", ")));
  for (size_t i = 0; i < program.inputs.size(); ++i)
    if (program.inputs[i].kind == pt2::InputSpec::Kind::user)
      return program.graph.tensors.at(std::get<pt2::ValueName>(program.graph.inputs[i].value).name);
  throw UsageError(fmt::format("MODEL {}: takes no tensor", exported.path().string()));
}

int64_t elements_in_file(const FromExport& exported) {
  const auto report = exported::report_of(exported.program());
  return report.trained_elements + report.frozen_elements;
}

std::string shape_words(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(size < 0 ? "any" : std::to_string(size));
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace

std::vector<nn::LoraMatrix> Network::adapters() const {
  return graph ? nn::lora_matrices(loras, nn::lora_candidates(*graph), "the graph")
               : exported->adapters();
}

int64_t Network::num_parameters() const {
  int64_t elements = graph ? graph->num_parameters() : elements_in_file(*exported);
  for (const nn::LoraMatrix& matrix : adapters()) elements += matrix.num_elements();
  return elements;
}

int64_t Network::num_frozen() const {
  if (graph) return loras.empty() ? graph->num_frozen() : graph->num_parameters();
  return exported->adapters().empty() ? exported::report_of(exported->program()).frozen_elements
                                      : elements_in_file(*exported);
}

std::vector<ps::Variable> Network::variables() const {
  std::vector<ps::Variable> variables;
  for (const nn::LoraMatrix& matrix : adapters()) {
    variables.push_back({matrix.name_of_a(), {matrix.lora.rank, matrix.in}});
    variables.push_back({matrix.name_of_b(), {matrix.out, matrix.lora.rank}});
  }
  if (!variables.empty()) return variables;
  if (graph) return variables_of(*graph);
  for (const std::string& name : trained_names(exported->program(), true))
    variables.push_back({name, shape_of(exported->program().tensors.at(name))});
  return variables;
}

bool is_exported(const std::string& model) { return model.ends_with(".pt2"); }

namespace {

std::vector<nn::Lora> loras_from(const std::vector<std::string>& texts) {
  std::vector<nn::Lora> loras;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    nn::Lora& lora = loras.emplace_back(nn::Lora{.pattern = text.substr(0, colon)});
    if (colon != std::string::npos)
      said_of("--lora " + text, [&] {
        read_fields(std::string_view(text).substr(colon + 1),
                    {{"rank", &lora.rank}, {"alpha", &lora.alpha}});
        return true;
      });
  }
  return loras;
}

// What is said of adapters begins with `lora "PATTERN"`.
template <class Make>
auto said_of_lora(Make make) {
  try {
    return make();
  } catch (const UsageError& error) {
    const std::string what = error.what();
    throw UsageError(what.starts_with("lora") ? "--" + what : what);
  }
}

}  // namespace

FromExport exported_from(const std::filesystem::path& path, FromExportOptions options,
                         const std::vector<std::string>& loras) {
  return said_of_lora([&] {
    options.lora = loras_from(loras);
    return from_export(path, options);
  });
}

Network adapted_graph(nn::Graph graph, const std::string& model,
                      const std::vector<std::string>& loras) {
  Network network{.graph = std::move(graph), .loras = loras_from(loras)};
  said_of_lora(
      [&] { return nn::lora_matrices(network.loras, nn::lora_candidates(*network.graph), model); });
  return network;
}

Check model_or_export() {
  Check check = one_of("model", all_model_names());
  check.answer = [named = check.answer](std::string& text) {
    return is_exported(text) ? "" : named(text);
  };
  return check;
}

int64_t num_outputs(const FromExport& exported) {
  const pt2::Program& program = exported.program();
  const auto* name = std::get_if<pt2::ValueName>(&program.graph.outputs.at(0).value);
  if (name == nullptr) return 0;
  const auto found = program.graph.tensors.find(name->name);
  if (found == program.graph.tensors.end() || found->second.sizes.empty()) return 0;
  const pt2::Size& last = found->second.sizes.back();
  return last.is_known() ? last.value : 0;
}

ExportedSamples samples_of(const FromExport& exported) {
  const pt2::TensorMeta& meta = meta_of_input(exported);
  ExportedSamples samples{.of_text = meta.element == pt2::Element::int64 && meta.sizes.size() == 2,
                          .shape = {}};
  for (size_t i = 1; i < meta.sizes.size(); ++i)
    samples.shape.push_back(meta.sizes[i].is_known() ? meta.sizes[i].value : -1);
  return samples;
}

void check_exported(const FromExport& exported, const DataSpec& spec) {
  const pt2::TensorMeta& meta = meta_of_input(exported);
  const ExportedSamples samples = samples_of(exported);
  const std::string path = exported.path().string();
  if (meta.sizes.empty())
    throw UsageError(fmt::format("MODEL {}: takes one number, expected a batch of samples", path));
  const bool fits = std::ranges::equal(samples.shape, spec.shape, [](int64_t own, int64_t given) {
    return own < 0 || own == given;
  });
  const bool is_float = meta.element == pt2::Element::float32;
  if (!fits || samples.of_text != spec.of_text() || (!samples.of_text && !is_float))
    throw UsageError(fmt::format("MODEL {}: was exported for samples {} {}, the data has {} {}",
                                 path, pt2::name_of(meta.element), shape_words(samples.shape),
                                 spec.of_text() ? "int64" : "float32", shape_words(spec.shape)));
  if (meta.sizes.front().is_known())
    throw UsageError(fmt::format(
        "MODEL {}: was exported for batches of {} alone: export it with dynamic_shapes, as python "
        "-m tutti.export does",
        path, meta.sizes.front().value));
  const int64_t outputs = num_outputs(exported);
  const int64_t wanted = spec.predicts_number() ? 1 : std::ssize(spec.classes);
  if (outputs != 0 && (spec.predicts_number() ? outputs != 1 : outputs < wanted))
    throw UsageError(fmt::format(
        "MODEL {}: gives {} outputs, the data has {}", path, outputs,
        spec.predicts_number() ? "one number to predict" : fmt::format("{} classes", wanted)));
  exported.require_evaluation();
}

void keep_exported(const FromExport& exported, const std::filesystem::path& folder) {
  const auto keep = [&](const std::filesystem::path& from, const char* name) {
    const auto to = folder / name;
    std::error_code failure;
    if (std::filesystem::exists(to, failure) &&
        std::filesystem::file_size(to, failure) == std::filesystem::file_size(from, failure) &&
        (std::filesystem::equivalent(from, to, failure) ||
         digest_of_file(from).sha256 == digest_of_file(to).sha256))
      return false;
    const MappedFile file = map_file(from);
    const std::span<const std::byte> pieces[] = {file.bytes};
    write_file_atomically(to, pieces);
    return true;
  };
  const bool is_another = keep(exported.path(), kExportFile);
  if (!exported.evaluation_path().empty())
    keep(exported.evaluation_path(), kEvalExportFile);
  else if (is_another)
    std::filesystem::remove(folder / kEvalExportFile);  // of the network that was there
  detail::write_graph_file(folder / detail::kGraphFile, std::nullopt);
}

namespace {

bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code failure;
  return std::filesystem::equivalent(a, b, failure) ||
         (std::filesystem::file_size(a, failure) == std::filesystem::file_size(b, failure) &&
          !failure && digest_of_file(a).sha256 == digest_of_file(b).sha256);
}

}  // namespace

Network network_beside(const DataSpec& spec, const std::string& typed,
                       const std::filesystem::path& weights) {
  if (!is_exported(spec.model))
    return adapted_graph(model_for_spec(spec.model, spec), spec.model, spec.lora);
  const auto beside = export_beside(weights);
  if (!beside && !is_exported(typed))
    throw UsageError(fmt::format(
        "{}: there is no {} beside the weights; give the file that was trained as MODEL",
        weights.string(), kExportFile));
  FromExportOptions options;
  // Another one that was typed has an evaluation of its own, or needs none.
  if (beside && (!is_exported(typed) || is_same_file(typed, beside->network)))
    options.eval = beside->evaluation;
  else if (auto own = std::filesystem::path(typed).replace_extension(".eval.pt2"); is_there(own))
    options.eval = std::move(own);
  FromExport exported = exported_from(
      is_exported(typed) ? std::filesystem::path(typed) : beside->network, options, spec.lora);
  check_exported(exported, spec);
  return {.exported = std::move(exported)};
}

}  // namespace tutti::cli
