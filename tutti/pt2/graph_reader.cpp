#include "tutti/pt2/detail/graph_reader.h"

#include <algorithm>
#include <utility>

#include "tutti/pt2/detail/reading.h"

namespace tutti::pt2::detail {
namespace {

/// The last frame of Python that is not PyTorch's own: "net.py:12, in forward: y = self.a(x)".
std::string line_of(std::string_view trace) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  constexpr size_t kMostBytes = 64 << 10;  // the last frames are the innermost
  trace.remove_prefix(trace.size() - std::min(trace.size(), kMostBytes));
  std::string line;
  bool is_own = false;
  for (size_t at = trace.find(kFile); at != trace.npos; at = trace.find(kFile, at + 1)) {
    const size_t begin = at + kFile.size(), quote = trace.find(kLine, begin);
    if (quote == trace.npos) break;
    const std::string_view path = trace.substr(begin, quote - begin);
    const bool of_user = path.find("/torch/") == path.npos && !path.starts_with("torch/");
    if (is_own && !of_user) continue;
    is_own = is_own || of_user;
    const size_t end = std::min(trace.find('\n', quote), trace.size());
    const size_t numbers = quote + kLine.size();
    line = fmt::format("{}:{}", path.substr(path.rfind('/') + 1),
                       trace.substr(numbers, end - numbers));
    const size_t code = trace.find_first_not_of(" \n", end);
    if (code != trace.npos && trace.compare(code, kFile.size(), kFile) != 0)
      line += fmt::format(": {}", trace.substr(code, trace.find('\n', code) - code));
  }
  return line;
}

/// Of "key,path,type;key,path,type": the last path.
std::string module_of(std::string_view stack) {
  const std::string_view last = stack.substr(stack.rfind(';') + 1);
  const size_t path = last.find(',');
  if (path == last.npos) return {};
  return std::string(last.substr(path + 1, last.find(',', path + 1) - path - 1));
}

}  // namespace

ValueName GraphReader::use(const Json& name, const Scope& scope) const {
  if (!scope.names.contains(name.text()))
    fail(scope.place, "value \"{}\" is used before it is made", name.text());
  return {name.text()};
}

std::string GraphReader::define(const Json& name, Scope& scope) const {
  if (name.text().empty()) throw JsonError("a value without a name");
  if (!scope.names.insert(name.text()).second)
    fail(scope.place, "value \"{}\" is made twice", name.text());
  return name.text();
}

Argument GraphReader::list_of(const std::string& kind, const Json& json, const Scope& scope) {
  List list;
  for (const Json& one : json.elements()) {
    if (kind == "as_tensors") {
      list.push_back({use(one.at("name"), scope)});
    } else if (kind == "as_ints") {
      list.push_back({integer_of(one)});
    } else if (kind == "as_floats") {
      list.push_back({real_of(one)});
    } else if (kind == "as_bools") {
      list.push_back({boolean_of(one)});
    } else if (kind == "as_strings") {
      list.push_back({one.text()});
    } else {  // a union each
      list.push_back(argument_of(one, scope));
    }
  }
  return {std::move(list)};
}

Argument GraphReader::argument_of(const Json& json, const Scope& scope) {
  const auto [kind, value] = union_of(json);
  if (kind == "as_none") return {None{}};
  if (kind == "as_tensor") return {use(value.at("name"), scope)};
  if (kind == "as_name") return {use(value, scope)};
  if (kind == "as_int") return {integer_of(value)};
  if (kind == "as_float") return {real_of(value)};
  if (kind == "as_bool") return {boolean_of(value)};
  if (kind == "as_string") return {value.text()};
  if (kind == "as_complex")
    return {std::complex<double>(real_of(value.at("real")), real_of(value.at("imag")))};
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool" ||
      kind == "as_optional_tensor")
    return argument_of(value, scope);
  if (kind == "as_tensors" || kind == "as_ints" || kind == "as_floats" || kind == "as_bools" ||
      kind == "as_strings" || kind == "as_sym_ints" || kind == "as_sym_floats" ||
      kind == "as_sym_bools" || kind == "as_optional_tensors")
    return list_of(kind, value, scope);
  if (kind == "as_scalar_type") return {element_of(value)};
  if (kind == "as_memory_format") return {memory_format_of(value)};
  if (kind == "as_layout") return require_strided(value), Argument{Strided{}};
  if (kind == "as_device") return {DeviceName{device_of(value)}};
  if (kind == "as_graph")
    return {std::make_shared<const Graph>(
        graph_of(value.at("graph"), scope.place + ", graph within", scope.depth + 1))};
  return {Unread{kind}};
}

NodeOutput GraphReader::output_of(const Json& json, Scope& scope) const {
  const auto [kind, value] = union_of(json);
  if (kind == "as_none") return {.is_list = false, .names = {""}};
  if (kind == "as_optional_tensor") return output_of(value, scope);
  if (kind == "as_tensor") return {.is_list = false, .names = {define(value.at("name"), scope)}};
  if (kind == "as_tensors") {
    NodeOutput output{.is_list = true, .names = {}};
    for (const Json& one : value.elements()) output.names.push_back(define(one.at("name"), scope));
    return output;
  }
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    const auto number = union_of(value);
    return {.is_list = false,
            .names = {number.kind == "as_name" ? define(number.value, scope) : ""}};
  }
  throw JsonError(fmt::format("an output of kind \"{}\", which is not read", kind));
}

Node GraphReader::node_of(const Json& json, Scope& scope) {
  Node node;
  node.target = json.at("target").text();
  const Json& metadata = json.at("metadata");
  if (metadata.contains("stack_trace")) node.line = line_of(metadata.at("stack_trace").text());
  if (metadata.contains("nn_module_stack"))
    node.module = module_of(metadata.at("nn_module_stack").text());
  for (const Json& input : json.at("inputs").elements())
    node.inputs.push_back({input.at("name").text(), argument_of(input.at("arg"), scope)});
  for (const Json& output : json.at("outputs").elements())
    node.outputs.push_back(output_of(output, scope));
  return node;
}

Graph GraphReader::graph_of(const Json& json, const std::string& place, int depth) {
  if (depth > limits_.graph_depth)
    fail(place_, "graphs within graphs, more than {}", limits_.graph_depth);
  Graph graph;
  Scope scope{.names = {}, .depth = depth, .place = place + ", inputs"};
  at_place(scope.place, [&] {
    for (const Json& input : json.at("inputs").elements()) {
      const auto output = union_of(input);
      const bool is_value = output.kind == "as_tensor" || output.kind.starts_with("as_sym_");
      const std::string made = is_value ? output_of(input, scope).names.front() : "";
      graph.inputs.push_back(made.empty() ? argument_of(input, scope) : Argument{ValueName{made}});
    }
  });
  at_place(place + ", nodes", [&] { json.at("nodes").elements(); });
  for (const Json& node : json.at("nodes").elements()) {
    if (++nodes_ > limits_.nodes) fail(place_, "more than {} nodes", limits_.nodes);
    scope.place = fmt::format("{}, node {}", place, graph.nodes.size());
    graph.nodes.push_back(at_place(scope.place, [&] { return node_of(node, scope); }));
  }
  scope.place = place + ", outputs";
  at_place(scope.place, [&] {
    for (const Json& output : json.at("outputs").elements())
      graph.outputs.push_back(argument_of(output, scope));
    for (const auto& [name, meta] : json.at("tensor_values").items()) {
      // Of a value in between nobody needs to know; of an input the signature's reader asks.
      try {
        graph.tensors.emplace(name, meta_of(meta, limits_.dimensions));
      } catch (const JsonError&) {
        continue;
      }
    }
  });
  return graph;
}

}  // namespace tutti::pt2::detail
