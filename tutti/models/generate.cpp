#include "tutti/models/generate.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/train/model/model.h"

namespace tutti::models {
namespace {

void require_in_range(const GenerateOptions& options) {
  const auto refuse = [](const char* what, auto value, const char* range) {
    throw UsageError(fmt::format("generate: {} is {}, must be {}", what, value, range));
  };
  if (options.context < 1) refuse("context", options.context, "1 or more");
  if (options.tokens < 0) refuse("tokens", options.tokens, "0 or more");
  if (options.top_k < 0) refuse("top_k", options.top_k, "1 or more, or 0: all");
  if (!(options.temperature > 0 && std::isfinite(options.temperature)))
    refuse("temperature", options.temperature, "finite and above 0");
}

}  // namespace

int64_t draw_token(std::span<const float> logits, int64_t number, const GenerateOptions& options) {
  require_in_range(options);
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }))
    throw DataError("generate: the model gives logits that are not finite");
  std::vector<int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto logit = [&](int64_t token) { return logits[static_cast<size_t>(token)]; };
  std::ranges::stable_sort(tokens, std::greater{}, logit);
  if (options.top_k > 0 && options.top_k < std::ssize(tokens))
    tokens.resize(static_cast<size_t>(options.top_k));
  std::vector<double> sums;  // of the probabilities up to each, times one factor
  double sum = 0;
  for (const int64_t token : tokens) {
    sum += std::exp((double{logit(token)} - double{logit(tokens[0])}) / options.temperature);
    sums.push_back(sum);
  }
  const double drawn = sum * uniform_double(random_key(options.seed, RandomPurpose::generate,
                                                       {static_cast<uint64_t>(number)}));
  const auto place = std::ranges::upper_bound(sums, drawn) - sums.begin();
  return tokens[static_cast<size_t>(std::min(place, std::ssize(tokens) - 1))];
}

std::vector<int64_t> generate(Model& model, std::span<const int64_t> prompt,
                              const GenerateOptions& options,
                              const std::function<void(int64_t token)>& each) {
  require_in_range(options);
  if (prompt.empty()) throw UsageError("generate: the prompt is empty; expected a token or more");
  std::vector<int64_t> all(prompt.begin(), prompt.end());
  for (int64_t number = 0; number < options.tokens; ++number) {
    // What stands after the last token is not seen from there.
    const int64_t seen = std::min(std::ssize(all), options.context);
    const at::Tensor window = at::zeros({1, options.context}, at::kLong);
    std::copy(all.end() - seen, all.end(), window.mutable_data_ptr<int64_t>());
    const at::Tensor logits = model.predict(window).select(0, 0).select(0, seen - 1).contiguous();
    const std::span values(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
    all.push_back(draw_token(values, number, options));
    if (each) each(all.back());
  }
  return {all.begin() + std::ssize(prompt), all.end()};
}

}  // namespace tutti::models
