#include "tutti/nn/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/graph.h"
#include "tutti/optim/recipe.h"

namespace tutti::nn {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_for(const Lora& lora, const std::string& name) {
  return optim::fits(lora.pattern, name) || optim::fits(lora.pattern + ".*", name);
}

bool is_matrix(const LoraCandidate& parameter) {
  return parameter.is_real && parameter.shape.size() == 2 &&
         std::ranges::all_of(parameter.shape, [](int64_t side) { return side > 0; });
}

[[noreturn]] void refuse(const Lora& lora, const std::string& why) {
  throw UsageError(fmt::format("lora \"{}\": {}", lora.pattern, why));
}

void check_range(const Lora& lora) {
  if (lora.pattern.empty()) refuse(lora, "is for no name; expected a pattern, as *.attn.*");
  if (lora.rank < 1)
    refuse(lora, fmt::format("rank = {} is out of range; expected 1 or more", lora.rank));
  if (lora.alpha && !(std::isfinite(*lora.alpha) && *lora.alpha > 0))
    refuse(lora, fmt::format("alpha = {} is out of range; expected a number above 0", *lora.alpha));
}

// Of a name that ends with kWeight.
std::string layer_of(const std::string& name) {
  return name.substr(0, name.size() - kWeight.size());
}

[[noreturn]] void throw_fits_none(const Lora& lora, const std::vector<LoraCandidate>& parameters,
                                  const std::string& of) {
  constexpr size_t kMost = 6;
  std::vector<std::string> names, first, known;
  for (const LoraCandidate& parameter : parameters) {
    if (is_for(lora, parameter.name))
      refuse(lora, fmt::format("of {} it fits {} [{}] and no matrix; expected weights of two sides",
                               of, parameter.name, fmt::join(parameter.shape, ", ")));
    if (!is_matrix(parameter)) continue;
    names.push_back(parameter.name);
    known.push_back(parameter.name);
    if (parameter.name.ends_with(kWeight)) known.push_back(layer_of(parameter.name));
  }
  if (names.empty()) refuse(lora, fmt::format("{} has no matrix that could get adapters", of));
  if (const std::string near = nearest(lora.pattern, known); !near.empty())
    refuse(lora, fmt::format("no parameter of {} has such a name; did you mean \"{}\"?", of, near));
  first.assign(names.begin(), names.begin() + std::ptrdiff_t(std::min(names.size(), kMost)));
  refuse(lora, fmt::format("no parameter of {} has such a name; expected some of its {} matrices: "
                           "{}{}",
                           of, names.size(), fmt::join(first, ", "),
                           names.size() > kMost ? ", ..." : ""));
}

void check_rank(const LoraMatrix& matrix) {
  const int64_t most = std::min(matrix.out, matrix.in);
  if (matrix.lora.rank > most)
    refuse(matrix.lora,
           fmt::format("rank = {} is more than a side of {} [{}, {}]; expected 1 to {}",
                       matrix.lora.rank, matrix.name, matrix.out, matrix.in, most));
}

std::string beside(const std::string& name, const char* adapter) {
  if (!name.ends_with(kWeight)) return fmt::format("{}.{}", name, adapter);
  return fmt::format("{}.{}{}", layer_of(name), adapter, kWeight);
}

}  // namespace

std::vector<LoraCandidate> lora_candidates(const Graph& graph) {
  std::vector<LoraCandidate> candidates;
  std::set<std::string> layers;
  for (const Node& node : graph.nodes()) {
    if (!layers.insert(node.name).second) continue;
    for (const Parameter& parameter : node.parameters)
      if (parameter.trainable) candidates.push_back({full_name(node, parameter), parameter.shape});
  }
  return candidates;
}

double Lora::scale() const {
  const auto sides = static_cast<double>(rank);
  return alpha.value_or(sides) / sides;
}

std::string to_string(const Lora& lora) {
  return fmt::format("{}:rank={},alpha={}", lora.pattern, lora.rank,
                     lora.alpha.value_or(static_cast<double>(lora.rank)));
}

std::string LoraMatrix::name_of_a() const { return beside(name, "lora_A"); }
std::string LoraMatrix::name_of_b() const { return beside(name, "lora_B"); }

std::vector<LoraMatrix> lora_matrices(const std::vector<Lora>& loras,
                                      const std::vector<LoraCandidate>& parameters,
                                      const std::string& of) {
  std::vector<LoraMatrix> matrices;
  std::vector<bool> used(loras.size()), fits(loras.size());
  std::ranges::for_each(loras, check_range);
  for (const LoraCandidate& parameter : parameters) {
    if (!is_matrix(parameter)) continue;
    bool taken = false;
    for (size_t i = 0; i < loras.size(); ++i) {
      if (!is_for(loras[i], parameter.name)) continue;
      fits[i] = true;
      if (std::exchange(taken, true)) continue;
      used[i] = true;
      matrices.push_back({parameter.name, parameter.shape[0], parameter.shape[1], loras[i]});
      check_rank(matrices.back());
    }
  }
  for (size_t i = 0; i < loras.size(); ++i) {
    if (!fits[i]) throw_fits_none(loras[i], parameters, of);
    if (!used[i]) refuse(loras[i], "all that it fits has adapters of an earlier pattern");
  }
  return matrices;
}

}  // namespace tutti::nn
