// tutti export: a trained model for other runtimes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/spec.h"
#include "tutti/cli/train/checkpoints.h"
#include "tutti/cli/train/network.h"
#include "tutti/cli/train/onnx_input.h"
#include "tutti/exported/module.h"
#include "tutti/exported/to_onnx.h"
#include "tutti/nn/to_onnx.h"
#include "tutti/train/model/detail/adapters.h"
#include "tutti/train/model/saved_model.h"
#include "tutti/train/model/weights.h"

namespace tutti::cli {
namespace {

struct ExportFlags {
  std::string run;
  std::string onnx;
  bool as_is = false;
};

/// The program, and what is said of it.
struct Exported {
  onnx::Program program;
  std::vector<std::string> sentences;
};

// "input \"x\": float32 [batch, 784]: why"
std::string port_words(const char* kind, const onnx::Port& port, const std::string& words) {
  return fmt::format("{} \"{}\": {}{}", kind, port.name, onnx::to_string(port.type),
                     words.empty() ? "" : ": " + words);
}

void add_metadata(onnx::Program& program, const DataSpec& spec) {
  if (!spec.model.empty()) program.metadata("model", spec.model);
  if (!spec.classes.empty()) program.metadata("classes", dump_json(OrderedJson(spec.classes)));
  if (spec.predicts_number()) program.metadata("target", spec.target().name);
}

std::string output_words(const DataSpec& spec) {
  if (spec.predicts_number()) return spec.target().name + ", in its own unit";
  return fmt::format("logits of {} {}, which softmax makes probabilities", spec.classes.size(),
                     spec.of_text() ? "characters" : "classes");
}

/// A network on its way: what goes in and comes out, and its nodes.
struct Source {
  std::vector<onnx::Port> inputs, outputs;
  std::function<std::vector<onnx::Value>(onnx::Program&, const std::vector<onnx::Value>&)> add_to;
  std::filesystem::path weights;
};

Source graph_source(const std::filesystem::path& run) {
  const SavedModel saved = find_saved_model(run);
  const auto module = module_of(saved);
  Source source{.weights = saved.weights};
  for (const nn::Port& port : saved.graph.inputs())
    source.inputs.push_back({port.name, nn::onnx_type(saved.graph, port)});
  for (const nn::Port& port : saved.graph.outputs())
    source.outputs.push_back({port.name, nn::onnx_type(saved.graph, port)});
  source.add_to = [module](onnx::Program& to, const std::vector<onnx::Value>& inputs) {
    return nn::add_to(to, module->graph(), nn::onnx_state_of(*module), inputs);
  };
  return source;
}

// A .pt2 file that was trained: its graph of evaluation, with the weights that are there now.
Source pt2_source(const std::filesystem::path& run, const DataSpec& spec) {
  const auto checkpoints = checkpoints_in(run);
  if (checkpoints.empty()) throw UsageError(fmt::format("{}: no weights are there", run.string()));
  const std::filesystem::path weights = checkpoints.back().path;
  const Network network = network_beside(spec, "", weights);
  network.exported->require_evaluation();
  const auto beside = network.exported->path().parent_path() / kEvalExportFile;
  const bool has_eval = network.exported->evaluation() != nullptr;
  const exported::ForOnnx file(has_eval ? beside : network.exported->path());
  const auto module = (*network.exported)();
  detail::load_module(*module, weights);
  exported::OnnxValues values;
  const ModelState state = merged_state_of(*module);
  values.insert(state.parameters.begin(), state.parameters.end());
  values.insert(state.buffers.begin(), state.buffers.end());
  return {file.inputs(), file.outputs(),
          [file, values](onnx::Program& to, const std::vector<onnx::Value>& inputs) {
            return file.add_to(to, inputs, values);
          },
          weights};
}

/// `spec`: what goes before the network, and behind it; none: it is left out.
Exported exported_by(const Source& source, const std::optional<DataSpec>& spec, bool as_is) {
  const bool prepares = spec && !as_is;
  if (prepares && (source.inputs.size() != 1 || source.outputs.size() != 1))
    throw UsageError(fmt::format(
        "{} is of one input and output, the network has {} and {}\n  --as-is leaves it out",
        kDataSpecFile, source.inputs.size(), source.outputs.size()));
  Exported made{onnx::Program("graph"), {}};
  std::vector<onnx::Value> inputs;
  std::string words;
  for (const onnx::Port& port : source.outputs) made.program.reserve_output(port.name);
  if (prepares) {
    const OnnxInput input = add_prepared_input(made.program, source.inputs[0].name, *spec);
    inputs.push_back(input.value);
    words = input.words;
  } else {
    for (const onnx::Port& port : source.inputs)
      inputs.push_back(made.program.input(port.name, port.type));
  }
  auto outputs = source.add_to(made.program, inputs);
  if (prepares) outputs[0] = in_own_unit(made.program, outputs[0], *spec);
  for (size_t i = 0; i < outputs.size(); ++i)
    made.program.output(source.outputs[i].name, outputs[i], source.outputs[i].type);
  if (spec) add_metadata(made.program, *spec);
  for (const onnx::Port& port : made.program.inputs())
    made.sentences.push_back(port_words("input", port, words));
  for (const onnx::Port& port : made.program.outputs())
    made.sentences.push_back(port_words("output", port, prepares ? output_words(*spec) : ""));
  return made;
}

std::string operator_words(const onnx::Program& program) {
  std::vector<std::string> words;
  for (const auto& [name, count] : program.operators())
    words.push_back(count == 1 ? name : fmt::format("{} x{}", name, count));
  return fmt::format("{}", fmt::join(words, ", "));
}

int run_export(const ExportFlags& flags) {
  const auto spec = spec_beside(flags.run);
  const bool of_python = spec && is_exported(spec->model);
  const Source source = of_python ? pt2_source(flags.run, *spec) : graph_source(flags.run);
  require_writable(flags.onnx, "--onnx");
  const Exported made = exported_by(source, spec, flags.as_is);
  const onnx::WrittenFile file = made.program.write(flags.onnx);
  say_line("{}: weights of {:.1f} MB", source.weights.string(),
           static_cast<double>(made.program.weight_bytes()) / 1e6);
  for (const std::string& sentence : made.sentences) say_line("{}", sentence);
  say_line("{} nodes: {}", made.program.all_nodes().size(), operator_words(made.program));
  say_line("saved {}{}: ONNX, opset {}, {:.1f} MB", flags.onnx,
           file.data.empty() ? "" : fmt::format(" and {}", file.data.string()), onnx::kOpset,
           static_cast<double>(file.bytes) / 1e6);
  return 0;
}

}  // namespace

void add_export(Command& program) {
  auto flags = std::make_shared<ExportFlags>();
  Command& command = program.command("export", "Write a trained model for other runtimes: as ONNX");
  command.place("RUN", &flags->run, some_name(),
                "The folder that --out of tutti train was given, a checkpoint in it, or weights "
                "with their graph beside them");
  command.add("--onnx", "FILE", &flags->onnx, some_name(), "The file to write: NAME.onnx")
      .required = true;
  command.flag("--as-is", &flags->as_is,
               "The network alone, without what data.json says is done to photos, images and rows "
               "before");
  command.footer =
      "Examples:\n"
      "  tutti export runs/doodles --onnx doodles.onnx\n"
      "  tutti export runs/photos/checkpoints/step-000000000400 --onnx photos.onnx --as-is\n\n"
      "It computes as in evaluation: dropout is gone, batch norms go by their running statistics. "
      "The first dimension is \"batch\", of any size. Weights of more than 1 GB stand in FILE.data "
      "beside FILE.";
  command.action = [flags] { return run_export(*flags); };
}

}  // namespace tutti::cli
