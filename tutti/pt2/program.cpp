#include "tutti/pt2/program.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/pt2/detail/graph_reader.h"
#include "tutti/pt2/detail/reading.h"

namespace tutti::pt2 {
namespace {

using detail::at_place;
using detail::fail;
using detail::integer_of;
using detail::Union;
using detail::union_of;

constexpr int64_t kMajor = 8;
constexpr std::string_view kDialect = "TRAINING";

class ProgramReader {
 public:
  ProgramReader(const Archive& archive, const std::string& name, const ProgramLimits& limits)
      : archive_(archive), name_(name), limits_(limits) {}

  Program read() {
    const std::string record = "models/" + name_ + ".json", place = place_of(record);
    const Json json = json_of(record);
    at_place(place, [&] { require_training(json, place); });
    read_tensors("data/weights/", name_ + "_weights_config.json");
    if (const std::string constants = name_ + "_constants_config.json";
        archive_.has("data/constants/" + constants))
      read_tensors("data/constants/", constants);
    at_place(place, [&] {
      const Json& module = json.at("graph_module");
      detail::GraphReader reader(place, limits_);
      program_.graph = reader.read(module.at("graph"));
      read_inputs(module.at("signature").at("input_specs"), place + ", signature");
      require_plain_outputs(module.at("signature").at("output_specs"), place + ", signature");
      read_names(module.at("module_call_graph"), place + ", module_call_graph");
      read_ranges(json.at("range_constraints"));
      program_.torch_version = json.value("torch_version", "");
      if (json.contains("guards_code"))
        program_.guards = json.at("guards_code").get<std::vector<std::string>>();
    });
    return std::move(program_);
  }

 private:
  std::string place_of(const std::string& record) const {
    return fmt::format("{}, \"{}\"", archive_.path().string(), record);
  }

  Json json_of(const std::string& record) const {
    const std::string_view text = archive_.text(record);
    if (text.size() > limits_.json_bytes)
      fail(place_of(record), "{} bytes, at most {} are read", text.size(), limits_.json_bytes);
    return at_place(place_of(record), [&] { return parse_json_once(text, limits_.json_depth); });
  }

  static void require_training(const Json& json, const std::string& place) {
    if (const int64_t major = integer_of(json.at("schema_version").at("major")); major != kMajor)
      fail(place, "schema {}, expected {}\n  export with PyTorch 2.6 or later of today's schema",
           json.at("schema_version").dump(), kMajor);
    const auto dialects = json.at("verifiers").get<std::vector<std::string>>();
    if (dialects != std::vector<std::string>{std::string(kDialect)})
      fail(place,
           "dialect \"{}\", expected \"{}\": decomposed graphs lose dropout of LSTMs and no_grad, "
           "and give wrong gradients\n  export module.train() by torch.export.export, and save "
           "that: without run_decompositions()",
           fmt::join(dialects, ", "), kDialect);
  }

  void read_tensors(const std::string& folder, const std::string& config) {
    const std::string place = place_of(folder + config);
    const Json json = json_of(folder + config);
    at_place(place, [&] {
      for (const auto& payload : json.at("config").items()) {
        const std::string at = fmt::format("{}, \"{}\"", place, payload.first);
        StoredTensor tensor = at_place(at, [&] { return tensor_of(payload.second, folder, at); });
        if (!program_.tensors.emplace(payload.first, std::move(tensor)).second)
          fail(at, "is there twice");
        if (program_.tensors.size() > limits_.tensors)
          fail(place, "more than {} tensors", limits_.tensors);
      }
    });
  }

  StoredTensor tensor_of(const Json& payload, const std::string& folder,
                         const std::string& place) const {
    const std::string record = folder + payload.at("path_name").text();
    if (detail::boolean_of(payload.at("use_pickle")) || payload.at("tensor_meta").is_null())
      fail(place, "is a pickle (a subclass of Tensor, or an object), expected a tensor's bytes");
    StoredTensor tensor{.record = record,
                        .meta = detail::meta_of(payload.at("tensor_meta"), limits_.dimensions),
                        .is_parameter = detail::boolean_of(payload.at("is_param"))};
    require_within(tensor, place);
    const bool is_real =
        tensor.meta.element == Element::float16 || tensor.meta.element == Element::bfloat16 ||
        tensor.meta.element == Element::float32 || tensor.meta.element == Element::float64 ||
        tensor.meta.element == Element::complex64 || tensor.meta.element == Element::complex128;
    if (tensor.meta.requires_grad && !is_real)
      fail(place, "requires gradients, which {} cannot have", name_of(tensor.meta.element));
    return tensor;
  }

  void require_within(const StoredTensor& tensor, const std::string& place) const {
    int64_t count = 1, last = tensor.meta.offset;
    const auto values = [](const std::vector<Size>& sizes) {
      std::vector<int64_t> numbers;
      for (const Size& size : sizes) numbers.push_back(size.value);
      return fmt::format("[{}]", fmt::join(numbers, ", "));
    };
    bool is_sound = tensor.meta.offset >= 0;
    for (size_t i = 0; i < tensor.meta.sizes.size() && is_sound; ++i) {
      const Size &size = tensor.meta.sizes[i], &stride = tensor.meta.strides[i];
      int64_t span = 0;
      is_sound =
          size.is_known() && stride.is_known() && size.value >= 0 && stride.value >= 0 &&
          !__builtin_mul_overflow(count, size.value, &count) &&
          !__builtin_mul_overflow(std::max<int64_t>(size.value - 1, 0), stride.value, &span) &&
          !__builtin_add_overflow(last, span, &last);
    }
    if (!is_sound)
      fail(place, "sizes {}, strides {} and offset {} are no tensor's", values(tensor.meta.sizes),
           values(tensor.meta.strides), tensor.meta.offset);
    if (count == 0) return;
    const auto found = archive_.records().find(tensor.record);
    if (found == archive_.records().end()) fail(place, "there is no record \"{}\"", tensor.record);
    const auto elements =
        static_cast<int64_t>(found->second.bytes.size()) / size_of(tensor.meta.element);
    if (last >= elements)
      fail(place, "reaches to element {} of record \"{}\", which has {}", last, tensor.record,
           elements);
    if (count > elements)
      fail(place,
           "{} elements lie on {} of record \"{}\": call contiguous() on it before the export",
           count, elements, tensor.record);
  }

  void read_inputs(const Json& specs, const std::string& place) {
    if (specs.size() != program_.graph.inputs.size())
      fail(place, "{} inputs, the graph has {}", specs.size(), program_.graph.inputs.size());
    std::set<std::string> seen;
    for (const Json& json : specs) {
      const size_t number = program_.inputs.size();
      const std::string at = fmt::format("{}, input {}", place, number);
      InputSpec spec = at_place(at, [&] { return spec_of(json, program_.graph.inputs[number]); });
      require_tensor(spec, at);
      if (spec.kind == InputSpec::Kind::parameter || spec.kind == InputSpec::Kind::buffer)
        program_.order.push_back(spec.target);
      if (!spec.target.empty() && !seen.insert(spec.target).second)
        fail(at, "\"{}\" is there twice", spec.target);
      program_.inputs.push_back(std::move(spec));
    }
    for (const std::string& name : program_.order)
      for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1))
        if (seen.contains(name.substr(0, dot)))
          fail(place, "\"{}\" is a tensor, and a module that has \"{}\"", name.substr(0, dot),
               name);
  }

  static InputSpec spec_of(const Json& json, const Argument& input) {
    using Kind = InputSpec::Kind;
    const Union entry = union_of(json);
    const std::string& kind = entry.kind;
    const auto* name = std::get_if<ValueName>(&input.value);
    if (kind == "user_input")
      return {.kind = name != nullptr ? Kind::user : Kind::fixed, .target = {}};
    if (kind == "constant_input") return {.kind = Kind::fixed, .target = {}};
    const auto held = [&](Kind of, std::string_view member) {
      const std::string& own = entry.value.at("arg").at("name").text();
      if (name == nullptr || name->name != own)
        throw JsonError(fmt::format("is \"{}\", the graph's is another", own));
      return InputSpec{.kind = of, .target = entry.value.at(member).text()};
    };
    if (kind == "parameter") return held(Kind::parameter, "parameter_name");
    if (kind == "tensor_constant") return held(Kind::constant, "tensor_constant_name");
    if (kind != "buffer")
      throw JsonError(fmt::format("an input of kind \"{}\", which is not read", kind));
    InputSpec spec = held(Kind::buffer, "buffer_name");
    spec.persistent = detail::boolean_of(entry.value.at("persistent"));
    return spec;
  }

  void require_tensor(const InputSpec& spec, const std::string& place) const {
    using Kind = InputSpec::Kind;
    if (spec.kind == Kind::user || spec.kind == Kind::fixed) return;
    const auto found = program_.tensors.find(spec.target);
    if (found == program_.tensors.end())
      fail(place, "\"{}\" is none of the file's tensors", spec.target);
    if ((spec.kind == Kind::parameter) != found->second.is_parameter)
      fail(place, "\"{}\" is a parameter here or in the file's tensors, and not in the other",
           spec.target);
    if (spec.kind != Kind::constant && !detail::is_path_of_modules(spec.target))
      fail(place, "\"{}\" cannot be the name of a parameter or buffer", spec.target);
  }

  void require_plain_outputs(const Json& specs, const std::string& place) const {
    if (specs.size() != program_.graph.outputs.size())
      fail(place, "{} outputs, the graph has {}", specs.size(), program_.graph.outputs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto [kind, value] = union_of(specs.at(i));
      if (kind != "user_output")
        fail(place, "an output of kind \"{}\", which no graph of dialect {} has", kind, kDialect);
      const auto* own = std::get_if<ValueName>(&program_.graph.outputs[i].value);
      const auto [of, argument] = union_of(value.at("arg"));
      if (of == "as_tensor" && (own == nullptr || own->name != argument.at("name").text()))
        fail(place, "output {} is \"{}\", the graph's is {}", i, argument.at("name").text(),
             own == nullptr ? "no value" : "\"" + own->name + "\"");
    }
  }

  void read_names(const Json& calls, const std::string& place) {
    const Json& call = calls.at(0).at("signature");
    program_.input_tree = read_tree(call.at("in_spec").text(), place + ", in_spec");
    program_.output_tree = read_tree(call.at("out_spec").text(), place + ", out_spec");
    std::vector<std::string> arguments;
    if (call.contains("forward_arg_names") && !call.at("forward_arg_names").is_null())
      arguments = call.at("forward_arg_names").get<std::vector<std::string>>();
    const auto names = argument_names(program_.input_tree, arguments);
    size_t leaf = 0;
    for (const InputSpec& spec : program_.inputs) {
      if (spec.kind != InputSpec::Kind::user && spec.kind != InputSpec::Kind::fixed) continue;
      if (leaf < names.size() && spec.kind == InputSpec::Kind::user)
        program_.input_names.push_back(names[leaf]);
      ++leaf;
    }
    if (leaf != names.size())
      fail(place, "forward takes {} values, the graph {}", names.size(), leaf);
    program_.output_names = leaf_names(program_.output_tree, "output");
    if (program_.output_names.size() != program_.graph.outputs.size())
      fail(place, "forward gives {} values, the graph {}", program_.output_names.size(),
           program_.graph.outputs.size());
  }

  void read_ranges(const Json& ranges) {
    const auto bound = [](const Json& json) {
      return json.is_null() ? std::nullopt : std::optional(integer_of(json));
    };
    for (const auto& [symbol, range] : ranges.items()) {
      const Range read{bound(range.at("min_val")), bound(range.at("max_val"))};
      if (read.min && read.max && *read.min > *read.max)
        throw JsonError(
            fmt::format("{} is from {} to {}, which no number is", symbol, *read.min, *read.max));
      program_.ranges[symbol] = read;
    }
  }

  const Archive& archive_;
  std::string name_;
  ProgramLimits limits_;
  Program program_;
};

}  // namespace

Program read_program(const Archive& archive, const std::string& name, const ProgramLimits& limits) {
  return ProgramReader(archive, name, limits).read();
}

}  // namespace tutti::pt2
