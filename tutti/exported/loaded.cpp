#include "tutti/exported/detail/loaded.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"
#include "tutti/exported/detail/served.h"
#include "tutti/optim/recipe.h"

namespace tutti::exported {
namespace detail {
namespace {

using pt2::InputSpec;

constexpr size_t kDigestDigits = 16;  // of files that differ by mistake

std::string shape_words(const pt2::TensorMeta& meta) {
  std::vector<std::string> sizes;
  for (const pt2::Size& size : meta.sizes)
    sizes.push_back(size.is_known() ? std::to_string(size.value) : size.expression);
  return fmt::format("{} [{}]", pt2::name_of(meta.element), fmt::join(sizes, ", "));
}

bool is_held(const InputSpec& spec) {
  return spec.kind == InputSpec::Kind::parameter || spec.kind == InputSpec::Kind::buffer ||
         spec.kind == InputSpec::Kind::constant;
}

std::vector<std::string> tensor_outputs(const pt2::Program& program) {
  std::vector<std::string> names;
  for (size_t i = 0; i < program.graph.outputs.size(); ++i) {
    const auto* name = std::get_if<pt2::ValueName>(&program.graph.outputs[i].value);
    if (name != nullptr && program.graph.tensors.contains(name->name))
      names.push_back(program.output_names[i]);
  }
  return names;
}

void check_records(const ProgramFile& file) {
  std::set<std::string> checked;
  for (const InputSpec& spec : file.program.inputs) {
    if (!is_held(spec)) continue;
    const std::string& record = file.program.tensors.at(spec.target).record;
    if (file.archive.has(record) && checked.insert(record).second) file.archive.read(record);
  }
}

void require_tensor_inputs(const ProgramFile& file) {
  const auto metas = user_inputs(file.program);
  for (size_t i = 0; i < metas.size(); ++i)
    if (metas[i] == nullptr)
      throw UsageError(fmt::format(
          "{}: input \"{}\" is no tensor of a known type: forward takes tensors, and numbers that "
          "are fixed at export",
          file.archive.path().string(), file.program.input_names[i]));
}

std::string held_words(const pt2::StoredTensor& tensor) { return shape_words(tensor.meta); }

// Tied ones once, as the module has them.
std::vector<nn::LoraCandidate> candidates_of(const pt2::Program& program) {
  std::vector<nn::LoraCandidate> candidates;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const std::string& name : program.order) {
    const pt2::StoredTensor& tensor = program.tensors.at(name);
    if (!tensor.is_parameter || !seen.emplace(tensor.record, tensor.meta.offset).second) continue;
    nn::LoraCandidate candidate{name, {}, at::isFloatingType(scalar_type_of(tensor.meta.element))};
    for (const pt2::Size& size : tensor.meta.sizes) candidate.shape.push_back(size.value);
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

bool is_named(const pt2::Argument& argument, const std::string& value) {
  const auto* const name = std::get_if<pt2::ValueName>(&argument.value);
  return name != nullptr && name->name == value;
}

// Whether all that takes the value multiplies something by it from the left: then it is [in, out].
bool is_right_factor(const pt2::Graph& graph, const std::string& value) {
  bool any = false;
  for (const pt2::Node& node : graph.nodes)
    for (const pt2::NodeInput& input : node.inputs) {
      if (!is_named(input.argument, value)) continue;
      const bool multiplied =
          (node.target == "torch.ops.aten.addmm.default" ||
           node.target == "torch.ops.aten.mm.default")
              ? input.name == "mat2"
              : node.target == "torch.ops.aten.matmul.default" && input.name == "other";
      if (!multiplied) return false;
      any = true;
    }
  return any;
}

bool lies_transposed(const pt2::Program& program, const std::string& parameter) {
  for (size_t i = 0; i < program.inputs.size(); ++i)
    if (program.inputs[i].kind == InputSpec::Kind::parameter &&
        program.inputs[i].target == parameter)
      return is_right_factor(program.graph,
                             std::get<pt2::ValueName>(program.graph.inputs[i].value).name);
  return false;
}

void require_untouched(const ProgramFile& file) {
  const CallPlan& plan = *file.plan;
  for (const size_t input : plan.perhaps_written)
    if (file.program.inputs[input].kind == InputSpec::Kind::parameter)
      throw UsageError(fmt::format(
          "lora: the graph of {} {} to parameter \"{}\" by itself, which has to stay as it is "
          "beside adapters; export it without that, as a clamp_ in forward",
          file.archive.path().string(),
          plan.written_inputs.contains(input) ? "writes" : "may write",
          file.program.inputs[input].target));
}

bool is_constant(const InputSpec& spec) {
  return spec.kind == InputSpec::Kind::constant ||
         (spec.kind == InputSpec::Kind::buffer && !spec.persistent);
}

// Of its bytes, and how they are laid out.
std::string digest_of(const ProgramFile& file, const std::string& name) {
  const pt2::StoredTensor& tensor = file.program.tensors.at(name);
  const auto number = [](const pt2::Size& size) { return size.value; };
  Sha256 sha;
  sha.update(fmt::format("{} {} {} ", held_words(tensor),
                         fmt::join(tensor.meta.strides | std::views::transform(number), ","),
                         tensor.meta.offset));
  if (file.archive.has(tensor.record)) {
    const auto bytes = file.archive.records().at(tensor.record).bytes;
    sha.update(bytes.data(), bytes.size());
  }
  return sha.hex().substr(0, kDigestDigits);
}

bool fits(const std::string& pattern, const std::string& name) {
  return optim::fits(pattern, name) || optim::fits(pattern + ".*", name);
}

[[noreturn]] void throw_fits_none(const ProgramFile& file, const std::string& pattern) {
  constexpr size_t kMost = 12;
  const pt2::Program& program = file.program;
  std::vector<std::string> names;
  for (const std::string& name : program.order)
    if (program.tensors.at(name).is_parameter) names.push_back(name);
  const auto first = std::span(names).first(std::min(names.size(), kMost));
  throw UsageError(fmt::format("freeze: no parameter of {} fits \"{}\"; it has {}{}",
                               file.archive.path().string(), pattern, fmt::join(first, ", "),
                               names.size() > kMost ? ", ..." : ""));
}

// One weight under several names.
bool is_one(const pt2::StoredTensor& a, const pt2::StoredTensor& b) {
  return a.record == b.record && a.meta.offset == b.meta.offset;
}

}  // namespace

std::string place_words(const pt2::StoredTensor& tensor) {
  std::vector<int64_t> strides;
  for (const pt2::Size& stride : tensor.meta.strides) strides.push_back(stride.value);
  return fmt::format("{} {} {} {} {} {}", tensor.record, held_words(tensor),
                     fmt::join(strides, ","), tensor.meta.offset, tensor.is_parameter,
                     tensor.meta.requires_grad);
}

std::vector<nn::LoraMatrix> adapters_of(const Loaded& loaded, const std::vector<nn::Lora>& loras) {
  const pt2::Program& program = loaded.training.program;
  auto matrices =
      nn::lora_matrices(loras, candidates_of(program), loaded.training.archive.path().string());
  require_untouched(loaded.training);
  if (loaded.evaluation) require_untouched(*loaded.evaluation);
  for (nn::LoraMatrix& matrix : matrices)
    if (lies_transposed(program, matrix.name)) matrix = matrix.turned();
  return matrices;
}

ProgramFile::ProgramFile(const std::filesystem::path& path)
    : archive(path), program(pt2::read_program(archive)) {
  PlanNotes notes;
  plan = make_call_plan(program.graph, notes);
  report = report_of(program);
  require_served(report, path);
  require_tensor_inputs(*this);
  if (tensor_outputs(program).empty())
    throw UsageError(fmt::format("{}: forward gives no tensor", path.string()));
  check_records(*this);
  output_names = tensor_outputs(program);
  digest = sha256_hex(archive.text("models/model.json")).substr(0, kDigestDigits);
  for (const InputSpec& spec : program.inputs)
    if (is_constant(spec)) constant_digests[spec.target] = digest_of(*this, spec.target);
}

void freeze(ProgramFile& training, const std::vector<std::string>& patterns) {
  pt2::Program& program = training.program;
  for (const std::string& pattern : patterns) {
    bool fits_any = false;
    for (const std::string& name : program.order) {
      const pt2::StoredTensor& named = program.tensors.at(name);
      if (!named.is_parameter || !fits(pattern, name)) continue;
      fits_any = true;
      for (auto& [other, tensor] : program.tensors)
        if (tensor.is_parameter && is_one(tensor, named)) tensor.meta.requires_grad = false;
    }
    if (!fits_any) throw_fits_none(training, pattern);
  }
  training.report = report_of(program);
  if (!patterns.empty() && training.report.trained_elements == 0)
    throw UsageError(fmt::format("freeze: {} is all of {}, so that nothing would be trained",
                                 fmt::join(patterns, ","), training.archive.path().string()));
}

void require_same_model(const ProgramFile& training, const ProgramFile& evaluation) {
  const auto differ = [&](const std::string& what) {
    throw DataError(fmt::format(
        "{}: is no evaluation of {}: {}\n  export the same module twice, after train() and after "
        "eval()",
        evaluation.archive.path().string(), training.archive.path().string(), what));
  };
  const std::set<std::string> names(training.program.order.begin(), training.program.order.end());
  for (const InputSpec& spec : evaluation.program.inputs) {
    if (!is_held(spec) || spec.kind == InputSpec::Kind::constant) continue;
    const auto found = training.program.tensors.find(spec.target);
    if (!names.contains(spec.target))
      return differ(fmt::format("it has \"{}\", which training's has not", spec.target));
    const std::string own = held_words(evaluation.program.tensors.at(spec.target));
    if (const std::string other = held_words(found->second); own != other)
      return differ(fmt::format("\"{}\" is {}, training's is {}", spec.target, own, other));
  }
  const size_t own = evaluation.program.input_names.size();
  if (const size_t other = training.program.input_names.size(); own != other)
    differ(fmt::format("it takes {} inputs, training's takes {}", own, other));
  const auto is_dictionary = [](const ProgramFile& file) {
    return file.program.output_tree.kind == pt2::Tree::Kind::dictionary;
  };
  if (is_dictionary(training) && is_dictionary(evaluation) &&
      training.output_names != evaluation.output_names)
    differ(fmt::format("it gives {}, training's gives {}", fmt::join(evaluation.output_names, ", "),
                       fmt::join(training.output_names, ", ")));
}

void say_if_not_of_evaluation(const ProgramFile& evaluation) {
  const auto& differences = evaluation.report.differs_in_evaluation;
  if (differences.empty()) return;
  const NotServed& first = differences.front();
  log(LogLevel::warning,
      "{}: this graph of evaluation behaves as in training: {} {}{}{}; was it exported after "
      "eval()?",
      evaluation.archive.path().string(), first.name, first.reason,
      first.line.empty() ? "" : " at ", first.line);
}

void require_evaluation(const Loaded& loaded) {
  const auto& differences = loaded.training.report.differs_in_evaluation;
  if (loaded.evaluation || differences.empty()) return;
  const NotServed& first = differences.front();
  throw UsageError(fmt::format(
      "{}: was exported for training, and {} {}{}{}: evaluation needs the graph of module.eval()\n"
      "  python -m tutti.export writes it too: from_export(\"net.pt2\", {{.eval = "
      "\"net.eval.pt2\"}}), --eval-model net.eval.pt2",
      loaded.training.archive.path().string(), first.name, first.reason,
      first.line.empty() ? "" : " at ", first.line));
}

c10::Storage TensorMaker::storage_of(const std::string& record) {
  if (const auto found = storages_.find(record); found != storages_.end()) return found->second;
  const auto bytes = file_.archive.records().at(record).bytes;
  const at::Tensor memory =
      at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  if (!bytes.empty()) std::memcpy(memory.mutable_data_ptr(), bytes.data(), bytes.size());
  return storages_.emplace(record, memory.storage()).first->second;
}

at::Tensor TensorMaker::make(const std::string& name) {
  const pt2::StoredTensor& stored = file_.program.tensors.at(name);
  std::vector<int64_t> sizes, strides;
  for (const pt2::Size& size : stored.meta.sizes) sizes.push_back(size.value);
  for (const pt2::Size& stride : stored.meta.strides) strides.push_back(stride.value);
  const std::string place = place_words(stored);
  if (const auto found = made_.find(place); found != made_.end()) return found->second;
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(scalar_type_of(stored.meta.element));
  at::Tensor tensor;
  if (std::ranges::find(sizes, 0) != sizes.end())
    tensor = at::empty(sizes, options);
  else
    tensor =
        at::empty({0}, options).set_(storage_of(stored.record), stored.meta.offset, sizes, strides);
  if (stored.is_parameter) tensor.set_requires_grad(stored.meta.requires_grad);
  return made_.emplace(place, tensor).first->second;
}

std::vector<const pt2::TensorMeta*> user_inputs(const pt2::Program& program) {
  std::vector<const pt2::TensorMeta*> metas;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].kind != InputSpec::Kind::user) continue;
    const auto& name = std::get<pt2::ValueName>(program.graph.inputs[i].value).name;
    const auto found = program.graph.tensors.find(name);
    metas.push_back(found == program.graph.tensors.end() ? nullptr : &found->second);
  }
  return metas;
}

std::string input_words(const pt2::Program& program, const pt2::TensorMeta& meta) {
  std::string words = shape_words(meta);
  std::set<std::string_view> said;
  for (const pt2::Size& size : meta.sizes) {
    const auto found = program.ranges.find(std::string(size.symbol()));
    if (found == program.ranges.end() || !said.insert(size.symbol()).second) continue;
    const auto& [min, max] = found->second;
    words += fmt::format("{} {}: {} to {}", said.size() == 1 ? "," : ";", size.symbol(),
                         min.value_or(0), max ? std::to_string(*max) : "any");
  }
  return words;
}

void check_inputs(const pt2::Program& program, at::ArrayRef<at::Tensor> inputs) {
  const auto metas = user_inputs(program);
  if (inputs.size() != metas.size())
    throw UsageError(fmt::format("forward: got {} tensors, expected {}: {}", inputs.size(),
                                 metas.size(), fmt::join(program.input_names, ", ")));
  std::map<std::string_view, std::pair<int64_t, size_t>> bound;  // and by which input
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    const pt2::TensorMeta& meta = *metas[i];
    const auto refuse = [&](const std::string& why) {
      throw UsageError(fmt::format(
          "forward: input \"{}\" is {} {}, the model was exported for {}{}", program.input_names[i],
          input.defined() ? c10::toString(input.scalar_type()) : "undefined",
          input.defined() ? fmt::format("[{}]", fmt::join(input.sizes(), ", ")) : "",
          input_words(program, meta), why));
    };
    if (!input.defined() || input.scalar_type() != scalar_type_of(meta.element) ||
        input.dim() != static_cast<int64_t>(meta.sizes.size()))
      refuse("");
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      const pt2::Size& size = meta.sizes[d];
      const int64_t got = input.size(static_cast<int64_t>(d));
      if (size.is_known() && size.value != got)
        refuse(d == 0 ? "\n  a batch that may have other sizes is exported with dynamic_shapes"
                      : "");
      if (size.symbol().empty()) continue;
      const auto [known, is_new] = bound.emplace(size.symbol(), std::pair(got, i));
      if (!is_new && known->second.first != got)
        refuse(fmt::format("\n  {} is {} in input \"{}\"", size.symbol(), known->second.first,
                           program.input_names[known->second.second]));
      const auto range = program.ranges.find(std::string(size.symbol()));
      if (range != program.ranges.end() &&
          (got < range->second.min.value_or(got) || got > range->second.max.value_or(got)))
        refuse("");
    }
  }
}

}  // namespace detail

namespace {

void count(const pt2::Graph& graph, std::map<std::string, int64_t>& counts) {
  for (const pt2::Node& node : graph.nodes) {
    const auto words = detail::operator_words(node.target);
    ++counts[words.name.empty() ? node.target : words.text()];
    for (const pt2::NodeInput& input : node.inputs)
      if (const auto* within =
              std::get_if<std::shared_ptr<const pt2::Graph>>(&input.argument.value))
        count(**within, counts);
  }
}

int64_t elements_of(const pt2::TensorMeta& meta) {
  int64_t elements = 1;
  for (const pt2::Size& size : meta.sizes) elements *= size.value;
  return elements;
}

void count_elements(const pt2::Program& program, Report& report) {
  std::set<std::pair<std::string, int64_t>> seen;
  for (const std::string& name : program.order) {
    const pt2::StoredTensor& tensor = program.tensors.at(name);
    if (!seen.emplace(tensor.record, tensor.meta.offset).second) continue;
    int64_t& sum = !tensor.is_parameter        ? report.buffer_elements
                   : tensor.meta.requires_grad ? report.trained_elements
                                               : report.frozen_elements;
    sum += elements_of(tensor.meta);
  }
}

}  // namespace

Report report_of(const pt2::Program& program) {
  Report report;
  std::map<std::string, int64_t> counts;
  count(program.graph, counts);
  for (const auto& [name, times] : counts) report.operators.push_back({name, times});
  std::ranges::stable_sort(report.operators, std::greater{}, &OperatorCount::count);
  detail::PlanNotes notes;
  detail::make_call_plan(program.graph, notes);
  report.not_served = std::move(notes.not_served);
  report.differs_in_evaluation = std::move(notes.by_mode);
  for (auto& [input, node] : notes.writes)
    if (program.inputs.at(input).kind != pt2::InputSpec::Kind::user)
      report.differs_in_evaluation.push_back(std::move(node));
  count_elements(program, report);
  return report;
}

void require_served(const Report& report, const std::filesystem::path& path) {
  if (report.not_served.empty()) return;
  constexpr size_t kMostShown = 12;
  std::string message = fmt::format("{}: {} nodes of its graph are not served here:", path.string(),
                                    report.not_served.size());
  for (size_t i = 0; i < std::min(report.not_served.size(), kMostShown); ++i) {
    const NotServed& one = report.not_served[i];
    message +=
        fmt::format("\n  {}: {}{}{}", one.name, one.reason, one.line.empty() ? "" : "; ", one.line);
  }
  if (report.not_served.size() > kMostShown)
    message += fmt::format("\n  and {} more: tutti inspect {}",
                           report.not_served.size() - kMostShown, path.string());
  throw UsageError(message);
}

}  // namespace tutti::exported
