#include "tests/fuzz/exported_files.h"

#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/pt2/program.h"

#include "tests/support/pt2_files.h"

namespace tutti::test {
namespace {

/// What whoever runs a program relies on: ends the process where it does not hold.
void sound(bool holds) {
  if (!holds) std::abort();
}

pt2::Archive archive_in(const std::string& bytes) {
  return pt2::Archive(MappedFile{std::as_bytes(std::span(bytes)), nullptr}, "fuzzer");
}

/// Whether the last element of a tensor lies within its record, counted in a type that cannot
/// overflow and is exact up to sizes of files.
void require_within(const pt2::StoredTensor& tensor, const pt2::Archive& archive) {
  sound(tensor.meta.sizes.size() == tensor.meta.strides.size() && tensor.meta.offset >= 0);
  long double last = static_cast<long double>(tensor.meta.offset);
  bool is_empty = false;
  for (size_t i = 0; i < tensor.meta.sizes.size(); ++i) {
    const auto size = tensor.meta.sizes[i].value, stride = tensor.meta.strides[i].value;
    sound(tensor.meta.sizes[i].is_known() && size >= 0 && stride >= 0);
    is_empty |= size == 0;
    last += static_cast<long double>(size - 1) * static_cast<long double>(stride);
  }
  if (is_empty) return;
  sound(archive.has(tensor.record));
  const auto bytes = static_cast<long double>(archive.records().at(tensor.record).bytes.size());
  sound((last + 1) * static_cast<long double>(pt2::size_of(tensor.meta.element)) <= bytes);
}

class Walk {
 public:
  void graph(const pt2::Graph& graph, std::set<std::string> known) {
    for (const pt2::Argument& input : graph.inputs)
      if (const auto* name = std::get_if<pt2::ValueName>(&input.value))
        sound(known.insert(name->name).second);
    for (const pt2::Node& node : graph.nodes) {
      sound(++nodes_ <= pt2::ProgramLimits{}.nodes);
      for (const pt2::NodeInput& input : node.inputs) uses(input.argument, known);
      for (const pt2::NodeOutput& output : node.outputs)
        for (const std::string& name : output.names)
          sound(name.empty() || known.insert(name).second);
    }
    for (const pt2::Argument& output : graph.outputs) uses(output, known);
  }

 private:
  void uses(const pt2::Argument& argument, const std::set<std::string>& known) {
    if (const auto* name = std::get_if<pt2::ValueName>(&argument.value))
      sound(known.contains(name->name));
    if (const auto* list = std::get_if<pt2::List>(&argument.value))
      for (const pt2::Argument& element : *list) uses(element, known);
    // A graph within another has values of its own alone.
    if (const auto* inner = std::get_if<std::shared_ptr<const pt2::Graph>>(&argument.value)) {
      sound(*inner != nullptr);
      graph(**inner, {});
    }
  }

  size_t nodes_ = 0;
};

void read_and_rely(const std::string& file) {
  const pt2::Archive archive = archive_in(file);
  const pt2::Program program = pt2::read_program(archive);
  Walk().graph(program.graph, {});
  sound(program.inputs.size() == program.graph.inputs.size());
  std::set<std::string> order;
  size_t given = 0;
  for (const pt2::InputSpec& spec : program.inputs) {
    given += spec.kind == pt2::InputSpec::Kind::user ? 1 : 0;
    const bool is_held =
        spec.kind != pt2::InputSpec::Kind::user && spec.kind != pt2::InputSpec::Kind::fixed;
    sound(!is_held || program.tensors.contains(spec.target));
  }
  sound(given == program.input_names.size());
  sound(program.output_names.size() == program.graph.outputs.size());
  for (const std::string& name : program.order)
    sound(order.insert(name).second && program.tensors.contains(name));
  for (const auto& [name, tensor] : program.tensors) require_within(tensor, archive);
}

/// Ten rows of six, and what else tests/tables/exported/mlp.pt2 has; as zeros.
std::string file_with(std::string_view model, std::string_view weights) {
  ZipFile zip;
  zip.records = {{.name = "net/archive_format", .bytes = "pt2"}};
  zip.add("archive_version", "0");
  zip.add("byteorder", "little");
  const size_t sizes[] = {60, 10, 30, 3};
  for (size_t i = 0; i < std::size(sizes); ++i)
    zip.add("data/weights/weight_" + std::to_string(i), std::string(4 * sizes[i], '\0'));
  zip.add(kModel, std::string(model));
  zip.add(kWeights, std::string(weights));
  return zip.bytes();
}

OrderedJson numbers(const std::vector<int64_t>& values) {
  OrderedJson list = OrderedJson::array();
  for (const int64_t value : values)
    list.push_back(std::map<std::string, int64_t>{{"as_int", value}});
  return list;
}

OrderedJson payload(const std::string& record, const std::vector<int64_t>& sizes) {
  OrderedJson meta = OrderedJson::object(), made = OrderedJson::object();
  meta["dtype"] = 7;
  meta["sizes"] = numbers(sizes);
  meta["requires_grad"] = true;
  meta["device"] = std::map<std::string, std::string>{{"type", "cpu"}};
  meta["strides"] =
      numbers(sizes.size() == 2 ? std::vector{sizes[1], int64_t{1}} : std::vector{int64_t{1}});
  meta["storage_offset"] = std::map<std::string, int64_t>{{"as_int", 0}};
  meta["layout"] = 7;
  made["path_name"] = record;
  made["is_param"] = true;
  made["use_pickle"] = false;
  made["tensor_meta"] = meta;
  return made;
}

std::string table() {
  OrderedJson config = OrderedJson::object(), made = OrderedJson::object();
  config["hidden.weight"] = payload("weight_0", {10, 6});
  config["hidden.bias"] = payload("weight_1", {10});
  config["head.weight"] = payload("weight_2", {3, 10});
  config["head.bias"] = payload("weight_3", {3});
  made["config"] = config;
  return made.dump();
}

/// A program without inputs, nodes and outputs.
constexpr std::string_view kNothing = R"({"schema_version": {"major": 8, "minor": 20},
"verifiers": ["TRAINING"], "opset_version": {}, "range_constraints": {}, "graph_module": {
"graph": {"inputs": [], "outputs": [], "nodes": [], "tensor_values": {}, "sym_int_values": {},
"sym_bool_values": {}}, "signature": {"input_specs": [], "output_specs": []},
"module_call_graph": [{"fqn": "", "signature": {"inputs": [], "outputs": [],
"in_spec": "[1, {\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": []}]",
"out_spec": "[1, {\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": []}]"
}}]}})";

}  // namespace

void pt2_archive(std::string_view bytes) {
  const std::string file(bytes);
  const pt2::Archive archive = archive_in(file);
  const auto* const begin = std::as_bytes(std::span(file)).data();
  size_t total = 0;
  for (const auto& [name, record] : archive.records()) {
    sound(record.bytes.empty() ||
          (record.bytes.data() >= begin &&
           record.bytes.data() + record.bytes.size() <= begin + file.size()));
    total += record.bytes.size();
  }
  sound(total <= file.size());
  for (const auto& [name, record] : archive.records()) {
    try {
      sound(archive.read(name).size() == record.bytes.size());
    } catch (const DataError&) {  // a checksum
    }
  }
  read_and_rely(file);
}

void pt2_program(std::string_view bytes) { read_and_rely(file_with(bytes, table())); }

void pt2_weights(std::string_view bytes) { read_and_rely(file_with(kNothing, bytes)); }

}  // namespace tutti::test
