#include "tutti/exported/report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/exported/detail/call_plan.h"
#include "tutti/exported/detail/served.h"

namespace tutti::exported {
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
