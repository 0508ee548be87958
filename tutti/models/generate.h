/// generate(): lets a model of texts write on, token by token.
///
///   const auto labels = data::text_labels("ROMEO:", classes, "prompt");
///   for (int64_t token : models::generate(model, labels, {.context = 64})) std::cout <<
///   classes[token];
///
/// Thread rule: that of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tutti {
class Model;
}

namespace tutti::models {

struct GenerateOptions {
  int64_t context = 64;    ///< tokens of the model's samples: those before the next one it sees
  int64_t tokens = 500;    ///< >= 0: to add
  double temperature = 1;  ///< > 0: logits are divided by it; low ones are sure of themselves
  int64_t top_k = 0;       ///< >= 1: one of the k likeliest, the first of equal ones; 0: of all
  uint64_t seed = 0;       ///< the same, with the same weights: the same tokens
};

/// Token number `number` of a text, drawn by its logits: by softmax(logits / temperature) among the
/// top k. A pure function. UsageError for options out of range; DataError for logits that are not
/// finite.
int64_t draw_token(std::span<const float> logits, int64_t number, const GenerateOptions& options);

/// The tokens that `model`, which gives logits [1, context, vocabulary] for int64 [1, context] as
/// gpt() does, adds to `prompt`; `each` is called with every one as it comes. UsageError for
/// options out of range and an empty prompt.
std::vector<int64_t> generate(Model& model, std::span<const int64_t> prompt,
                              const GenerateOptions& options,
                              const std::function<void(int64_t token)>& each = {});

}  // namespace tutti::models
