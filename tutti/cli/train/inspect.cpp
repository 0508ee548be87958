// tutti inspect: what a .pt2 file holds, and whether it trains here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/results.h"
#include "tutti/exported/report.h"
#include "tutti/pt2/program.h"

namespace tutti::cli {
namespace {

struct InspectFlags {
  std::string file;
  std::string json;
  bool parameters = false;
};

std::string shape_words(const pt2::TensorMeta& meta) {
  std::vector<std::string> sizes;
  for (const pt2::Size& size : meta.sizes)
    sizes.push_back(size.is_known() ? std::to_string(size.value) : size.expression);
  return fmt::format("{} [{}]", pt2::name_of(meta.element), fmt::join(sizes, ", "));
}

/// Of a value of the graph; "" where it is no tensor.
std::string value_words(const pt2::Program& program, const pt2::Argument& value) {
  const auto* name = std::get_if<pt2::ValueName>(&value.value);
  if (name == nullptr) return "";
  const auto found = program.graph.tensors.find(name->name);
  return found == program.graph.tensors.end() ? "" : shape_words(found->second);
}

std::string range_words(const pt2::Range& range) {
  return fmt::format("{} to {}", range.min.value_or(0),
                     range.max ? std::to_string(*range.max) : "any");
}

OrderedJson json_of(const std::vector<exported::NotServed>& nodes) {
  OrderedJson all = OrderedJson::array();
  for (const auto& node : nodes)
    all.push_back({{"operator", node.name}, {"reason", node.reason}, {"line", node.line}});
  return all;
}

class Inspection {
 public:
  explicit Inspection(const InspectFlags& flags)
      : archive_(flags.file),
        program_(pt2::read_program(archive_)),
        report_(exported::report_of(program_)) {
    for (const auto& [name, record] : archive_.records()) archive_.read(name);
  }

  void print(bool parameters) const {
    print_line("written by PyTorch {}; {} nodes", program_.torch_version,
               program_.graph.nodes.size());
    print_line("parameters: {} elements trained, {} frozen; {} in buffers",
               report_.trained_elements, report_.frozen_elements, report_.buffer_elements);
    if (parameters)
      for (const std::string& name : program_.order)
        print_line("  {} {}{}", name, shape_words(program_.tensors.at(name).meta),
                   kind_of(program_.tensors.at(name)));
    for (const auto& [name, words] : inputs()) print_line("input {}: {}", name, words);
    for (size_t i = 0; i < program_.output_names.size(); ++i)
      print_line("output {}: {}", program_.output_names[i],
                 value_words(program_, program_.graph.outputs[i]));
    for (const auto& [symbol, range] : program_.ranges)
      print_line("{}: {}", symbol, range_words(range));
    print_line("operators:");
    for (const auto& [name, count] : report_.operators) print_line("  {:>6}  {}", count, name);
    print_nodes("differs in evaluation, which needs the graph of module.eval():",
                report_.differs_in_evaluation);
    print_nodes("not served:", report_.not_served);
    if (report_.not_served.empty()) print_line("it trains here");
  }

  OrderedJson json() const {
    OrderedJson json{{"torch_version", program_.torch_version},
                     {"nodes", program_.graph.nodes.size()},
                     {"trained_elements", report_.trained_elements},
                     {"frozen_elements", report_.frozen_elements},
                     {"buffer_elements", report_.buffer_elements}};
    json["parameters"] = OrderedJson::array();
    for (const std::string& name : program_.order)
      json["parameters"].push_back({{"name", name},
                                    {"what", shape_words(program_.tensors.at(name).meta)},
                                    {"kind", kind_of(program_.tensors.at(name))}});
    json["inputs"] = inputs();
    json["outputs"] = program_.output_names;
    json["ranges"] = OrderedJson::object();
    for (const auto& [symbol, range] : program_.ranges) json["ranges"][symbol] = range_words(range);
    json["operators"] = OrderedJson::object();
    for (const auto& [name, count] : report_.operators) json["operators"][name] = count;
    json["differs_in_evaluation"] = json_of(report_.differs_in_evaluation);
    json["not_served"] = json_of(report_.not_served);
    return json;
  }

  bool trains() const { return report_.not_served.empty(); }

 private:
  static std::string kind_of(const pt2::StoredTensor& tensor) {
    if (!tensor.is_parameter) return ", buffer";
    return tensor.meta.requires_grad ? "" : ", frozen";
  }

  std::vector<std::pair<std::string, std::string>> inputs() const {
    std::vector<std::pair<std::string, std::string>> all;
    for (size_t i = 0; i < program_.inputs.size(); ++i)
      if (program_.inputs[i].kind == pt2::InputSpec::Kind::user)
        all.emplace_back(program_.input_names[all.size()],
                         value_words(program_, program_.graph.inputs[i]));
    return all;
  }

  static void print_nodes(const char* head, const std::vector<exported::NotServed>& nodes) {
    if (!nodes.empty()) print_line("{}", head);
    for (const auto& node : nodes)
      print_line("  {}: {}{}{}", node.name, node.reason, node.line.empty() ? "" : "; ", node.line);
  }

  pt2::Archive archive_;
  pt2::Program program_;
  exported::Report report_;
};

int inspect(const InspectFlags& flags) {
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const Inspection inspection(flags);
  inspection.print(flags.parameters);
  if (!flags.json.empty())
    write_file_atomically(flags.json, json_text(inspection.json(), 2) + "\n");
  return inspection.trains() ? 0 : 1;
}

}  // namespace

void add_inspect(Command& program) {
  auto flags = std::make_shared<InspectFlags>();
  Command& command = program.command(
      "inspect", "Say what a .pt2 file of PyTorch holds, and whether it trains here");
  command.place("FILE.pt2", &flags->file, some_name(),
                "As torch.export.save or python -m tutti.export wrote it");
  command.flag("--parameters", &flags->parameters, "Lists parameters and buffers, too");
  command.add("--json", "FILE", &flags->json, some_name(), "File for the same as JSON");
  command.footer =
      "Examples:\n"
      "  tutti inspect net.pt2\n"
      "  tutti inspect net.pt2 --parameters --json net.json\n\n"
      "Nothing of the file is run. Exit codes: 0 it trains here; 1 an operator is not served, with "
      "its\nline of Python; 2 the file is damaged, or no program of torch.export.";
  command.action = [flags] { return inspect(*flags); };
}

}  // namespace tutti::cli
