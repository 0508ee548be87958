/// GPT: a network that predicts the next token of a text, by Radford et al. 2019 ("GPT-2").
///
///   auto train = data::text("input.txt", {.length = 64});
///   tutti::Model model(strategy, [&] { return models::gpt({.vocabulary = train.num_classes()});
///   });
///
/// docs/guide/text.md trains one, and lets it write.
/// Thread rule: pure functions; a module belongs to one thread.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tutti/nn/graph.h"

namespace torch::nn {
class Module;
}

namespace tutti::models {

struct GptOptions {
  int64_t vocabulary = 256;  ///< >= 1: tokens are 0 to vocabulary - 1
  int64_t context = 64;      ///< >= 1: tokens of a sample
  int64_t layers = 4;        ///< >= 1: blocks
  int64_t heads = 4;         ///< >= 1, divides the features
  int64_t features = 128;    ///< >= 1: of each position
  int64_t mlp = 0;           ///< units between the dense layers of a block; 0: 4 times the features
  bool tied = true;          ///< the head's weight is that of the tokens; else it has its own
  double dropout = 0;        ///< of the embeddings, and of what attention and mlp add
  bool gelu_by_tanh = true;  ///< as GPT-2 computes it
  double epsilon = 1e-5;     ///< of the layer norms
};

/// Tokens int64 [batch, context] to logits [batch, context, vocabulary] of the token after each.
/// Position i sees tokens 0 to i. Blocks norm before attention and mlp; positions are learned.
/// Trained by sparse_categorical_crossentropy with targets [batch, context].
///
/// Parameters have the names of transformers' GPT2LMHeadModel
/// ("transformer.h.0.attn.c_attn.weight"; load_gpt2() has what differs) and GPT-2's initial values:
/// normal with deviation 0.02, of what is added around 0.02 / sqrt(2 layers); biases 0. Options out
/// of range throw UsageError; of heads that do not divide the features with those that do.
nn::Graph gpt(GptOptions options = {});

/// Options of a model as transformers' config.json of GPT-2 has them, without dropout. DataError
/// for another kind of model, and for variants of GPT-2 that gpt() is not.
GptOptions gpt2_options(const std::filesystem::path& config);

/// Weights that transformers saved (GPT2LMHeadModel or GPT2Model.save_pretrained, and the files of
/// openai-community/gpt2) into `module`, made of gpt(). They are float32 and called as here, but
/// for a prefix that some lack; dense layers are transposed on the way: GPT-2's have their weights
/// [in, out], those here [out, in]. Nothing is written unless everything fits; else DataError with
/// every difference in names, shapes and dtypes.
void load_gpt2(torch::nn::Module& module, const std::filesystem::path& file);

}  // namespace tutti::models
