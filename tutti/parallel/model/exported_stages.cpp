#include "tutti/parallel/model/exported_stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/sample_context.h"
#include "tutti/parallel/stages/balance.h"
#include "tutti/parallel/stages/detail/layer_spans.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel {
namespace {

using exported::CutPlace;

std::vector<CutPlace> cuts_at(const ExportedCuts& cuts, const std::vector<size_t>& places) {
  std::vector<CutPlace> at{cuts.begin()};
  for (const size_t place : places) at.push_back(cuts.places().all.at(place));
  at.push_back(cuts.end());
  return at;
}

/// Those that it can be cut before: where they are many, without what is within others.
std::string possible_names(const ExportedCuts& cuts) {
  constexpr size_t kMost = 20;
  const auto depth = [](const std::string& name) { return std::ranges::count(name, '.'); };
  std::vector<std::string> names;
  for (const CutPlace& place : cuts.places().all) names.push_back(place.names.front());
  if (names.empty()) return "it can be cut nowhere";
  while (names.size() > kMost) {
    const auto deepest = depth(*std::ranges::max_element(names, {}, depth));
    if (deepest == depth(*std::ranges::min_element(names, {}, depth))) break;
    std::erase_if(names, [&](const std::string& name) { return depth(name) == deepest; });
  }
  const bool more = names.size() > kMost;
  if (more) names.resize(kMost);
  return fmt::format("it can be cut before {}{}", fmt::join(names, ", "), more ? ", ..." : "");
}

/// Number of the place where a module begins; none: it is known, and nothing can be cut there.
std::optional<size_t> place_of(const ExportedCuts& cuts, const std::string& module) {
  std::vector<std::string> known;
  const auto& [all, whys] = cuts.places();
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::find(all[i].names, module) != all[i].names.end()) return i;
    known.insert(known.end(), all[i].names.begin(), all[i].names.end());
  }
  if (whys.contains(module)) return std::nullopt;
  for (const auto& [name, why] : whys) known.push_back(name);
  const std::string near = nearest(module, known);
  throw UsageError(fmt::format(
      "stages: the network has no module \"{}\" to be cut before; {}{}", module,
      near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near), possible_names(cuts)));
}

/// What a part is called by: the innermost module that begins with it.
std::string name_of_part(const ExportedCuts& cuts, const CutPlace& place) {
  if (!place.names.empty()) return place.names.back();
  for (const exported::CutCall& call : cuts.training().calls())
    if (!call.size_of && !call.module.empty()) return call.module;
  return "";
}

std::vector<detail::LayerUnit> units_of(const ExportedCuts& cuts,
                                        const std::vector<CutPlace>& parts) {
  std::vector<detail::LayerUnit> units;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const bool trains = cuts.training().owns(parts[i].training, parts[i + 1].training);
    units.push_back({.name = name_of_part(cuts, parts[i]),
                     .parameters = trains ? static_cast<const void*>(&parts[i]) : nullptr});
  }
  return units;
}

/// ((c + b) + a) is what autograd adds of three reads: a span may not have added b and a before.
void require_order_of_sums(const ExportedCuts& cuts, const std::vector<CutPlace>& spans) {
  const auto& graph = cuts.training();
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const int value = static_cast<int>(v);
    if (!graph.values()[v].trained || graph.values()[v].tensor != value) continue;
    int before = 0;  // of the last span that reads it
    for (size_t i = 0; i + 1 < spans.size(); ++i) {
      const int reads = graph.reads_of(value, spans[i].training, spans[i + 1].training);
      if (reads > 0 && before > 1)
        throw UsageError(fmt::format(
            "recompute: parameter {} is read {} times in what is computed together, and again "
            "behind it, so that its gradients would be added in another order; take full",
            graph.values()[v].name, before));
      if (reads > 0) before = reads;
    }
  }
}

std::vector<Span> spans_of_stage(const ExportedCuts& cuts,
                                 const std::shared_ptr<ExportedStage>& stage, const CutPlace& from,
                                 const CutPlace& to, const Recompute& recompute) {
  std::vector<CutPlace> all{cuts.begin()}, parts{from};
  for (const CutPlace& place : cuts.places().all) {
    all.push_back(place);
    if (place.training > from.training && place.training < to.training) parts.push_back(place);
  }
  all.push_back(cuts.end());
  parts.push_back(to);
  std::vector<std::string> names;
  for (const detail::LayerUnit& unit : units_of(cuts, all)) names.push_back(unit.name);
  detail::require_layers(names, recompute);
  std::vector<Span> spans;
  std::vector<CutPlace> borders;
  for (const auto& [begin, end, again] : detail::layer_spans(units_of(cuts, parts), recompute)) {
    if (again)
      cuts.require_no_writes(parts[begin], parts[end],
                             "recompute: a second forward would not be the first, since this "
                             "writes to a buffer; leave recompute off, or name other modules");
    borders.push_back(parts[begin]);
    // Its layers have nothing to say for themselves: what they write to was looked for above.
    spans.push_back({.forward = cuts.part_of(*stage, parts[begin], parts[end]),
                     .recompute = again,
                     .layers = {stage.get()}});
  }
  borders.push_back(to);
  require_order_of_sums(cuts, borders);
  return spans;
}

// Between ranks of one host, as of layers of a graph.
constexpr LinkCost kLinkOfParts{.latency = 2e-6, .seconds_per_byte = 1e-10};
constexpr int64_t kSamplesOfPart = 2;
constexpr size_t kRunsOfPart = 5;  // of which the median counts

std::vector<at::Tensor> zeros_for(const ExportedCuts& cuts) {
  std::vector<at::Tensor> inputs;
  for (const auto& value : cuts.training().values()) {
    if (value.origin != exported::CutValue::Origin::user) continue;
    std::vector<int64_t> sizes;
    for (const pt2::Size& size : value.meta->sizes)
      sizes.push_back(size.is_known() ? size.value
                                      : cuts.training().known(size).value_or(kSamplesOfPart));
    const DType dtype = exported::dtype_sent(value.meta->element).value_or(DType::float32);
    inputs.push_back(at::zeros(sizes, scalar_type_of(dtype)));
  }
  return inputs;
}

/// Forward and backward of a part, in seconds. `values` become what it gives.
double seconds_of_part(const ExportedStage::Forward& part, std::vector<at::Tensor>& values) {
  std::array<double, kRunsOfPart> seconds{};
  std::vector<at::Tensor> outputs;
  for (double& one : seconds) {
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& value : values) {
      inputs.push_back(value.detach());
      if (value.requires_grad()) inputs.back().set_requires_grad(true);
    }
    const TimePoint begin = Clock::now();
    outputs = part(inputs);
    at::Tensor sum;
    for (const at::Tensor& output : outputs)
      if (output.requires_grad()) sum = sum.defined() ? sum + output.sum() : output.sum();
    if (sum.defined()) sum.backward();
    one = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  values = std::move(outputs);
  std::ranges::nth_element(seconds, seconds.begin() + kRunsOfPart / 2);
  return seconds[kRunsOfPart / 2];
}

std::vector<LayerCost> measured_parts(const ExportedCuts& cuts,
                                      const std::vector<CutPlace>& parts) {
  const auto whole = cuts.stage({cuts.begin(), cuts.end()}, 0);
  whole->train();
  const nn::SampleContext of_none({});  // so that no generator moves
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : whole->buffers()) buffers.push_back(buffer.clone());
  std::vector<at::Tensor> values = zeros_for(cuts);
  std::vector<LayerCost> costs;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    LayerCost& cost = costs.emplace_back();
    cost.seconds = seconds_of_part(cuts.part_of(*whole, parts[i], parts[i + 1]), values);
    for (const at::Tensor& value : values)
      cost.bytes_out += 2 * static_cast<int64_t>(value.nbytes());
  }
  for (at::Tensor& parameter : whole->parameters()) parameter.mutable_grad().reset();
  const at::NoGradGuard no_gradient;
  for (size_t i = 0; i < buffers.size(); ++i) whole->buffers()[i].copy_(buffers[i]);
  return costs;
}

}  // namespace

void require_modules(const ExportedCuts& cuts, const std::vector<std::string>& modules) {
  for (const std::string& module : modules) place_of(cuts, module);
}

std::vector<size_t> places_before(const ExportedCuts& cuts,
                                  const std::vector<std::string>& modules) {
  std::vector<size_t> places;
  for (const std::string& module : modules) {
    const auto place = place_of(cuts, module);
    if (!place)
      throw UsageError(fmt::format("stages: the network cannot be cut before {}: {}; {}", module,
                                   cuts.places().whys.at(module), possible_names(cuts)));
    if (!places.empty() && *place <= places.back())
      throw UsageError(fmt::format(
          "stages: a cut is before {}, the next one before {}, which begins {}; name them in the "
          "order in which they are called",
          modules[places.size() - 1], module,
          *place == places.back() ? "at the same place" : "earlier"));
    places.push_back(*place);
  }
  return places;
}

void require_stages(const ExportedCuts& cuts, int stages) {
  const size_t most = cuts.places().with_parameters(cuts.training()).size() + 1;
  if (static_cast<size_t>(stages) <= most) return;
  const auto& whys = cuts.places().whys;
  const std::string why = whys.empty() ? ""
                                       : fmt::format("\n  not before {}: {}", whys.begin()->first,
                                                     whys.begin()->second);
  throw UsageError(fmt::format(
      "{} stages, but the network can be cut into {} at most, each with parameters; take fewer "
      "ranks on axis stage, or fewer stages a rank; {}{}",
      stages, most, possible_names(cuts), why));
}

std::vector<size_t> balanced_places(const ExportedCuts& cuts, int stages) {
  require_stages(cuts, stages);
  const std::vector<size_t> places = cuts.places().with_parameters(cuts.training());
  std::vector<size_t> begins =
      balanced(measured_parts(cuts, cuts_at(cuts, places)), stages, kLinkOfParts);
  begins.erase(begins.begin());
  begins.pop_back();
  for (size_t& begin : begins) begin = places[begin - 1];
  return begins;
}

Stage stage_of(const ExportedCuts& cuts, const std::vector<size_t>& places, int number,
               const Recompute& recompute) {
  const std::vector<CutPlace> at = cuts_at(cuts, places);
  const auto module = cuts.stage(at, number);
  Stage stage{.module = module, .forward = module->forward_part};
  for (const auto& [dtype, shape] : module->inputs) stage.inputs.push_back({shape, dtype});
  for (const auto& [dtype, shape] : module->outputs) stage.outputs.push_back({shape, dtype});
  for (const auto& [name, parameter, owner, reader] : module->ties)
    stage.ties.push_back({name, parameter, owner, reader});
  if (recompute.in_stages())
    stage.spans = spans_of_stage(cuts, module, at[static_cast<size_t>(number)],
                                 at[static_cast<size_t>(number) + 1], recompute);
  return stage;
}

}  // namespace tutti::parallel
