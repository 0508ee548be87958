// GPT-2 as Hugging Face's transformers writes it: config.json and model.safetensors.
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/data/safetensors.h"
#include "tutti/models/gpt.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/weights.h"

namespace tutti::models {
namespace {

constexpr std::string_view kBody = "transformer.", kHead = "lm_head.weight",
                           kWords = "transformer.wte.weight";

void require_known(const Json& json) {
  const auto refuse = [](const std::string& what) { throw DataError(what); };
  if (json.value("model_type", "") != "gpt2")
    refuse(fmt::format("model_type is \"{}\", expected gpt2", json.value("model_type", "")));
  const struct {
    const char* name;
    bool expected;
  } flags[] = {{"scale_attn_weights", true},
               {"scale_attn_by_inverse_layer_idx", false},
               {"add_cross_attention", false}};
  for (const auto& [name, expected] : flags)
    if (json.value(name, expected) != expected)
      refuse(fmt::format("{} is {}, expected {}", name, !expected, expected));
}

bool gelu_by_tanh(const Json& json) {
  const std::string name = json.value("activation_function", "gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return true;
  if (name == "gelu") return false;
  throw DataError(fmt::format("activation_function is \"{}\", expected gelu_new or gelu", name));
}

int64_t number_or_zero(const Json& json, const char* name) {
  return json.contains(name) && !json.at(name).is_null() ? json.at(name).get<int64_t>() : 0;
}

/// The causal mask, which old files have among their weights.
bool is_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// Whether it is the weight of a dense layer, [in, out] in GPT-2 (its Conv1D) and [out, in] here.
bool is_dense(const std::string& name) {
  constexpr std::array<std::string_view, 3> kLayers = {".c_attn.weight", ".c_proj.weight",
                                                       ".c_fc.weight"};
  return std::ranges::any_of(kLayers, [&](auto layer) { return name.ends_with(layer); });
}

Array array_of(const at::Tensor& values) {
  const auto kept = std::make_shared<at::Tensor>(values);
  const MemorySpan span = span_of(*kept);
  return Array::view(span.data, span.dtype, kept->sizes().vec(), kept);
}

data::NamedArray as_here(data::NamedArray theirs) {
  auto& [name, array] = theirs;
  if (name != kHead && !name.starts_with(kBody)) name.insert(0, kBody);
  if (is_dense(name) && array.shape().size() == 2)
    array = array_of(tensor_of(array).t().contiguous());
  else if (name == "transformer.wpe.weight")
    array = array_of(tensor_of(array).unsqueeze(0));
  return theirs;
}

}  // namespace

GptOptions gpt2_options(const std::filesystem::path& config) {
  try {
    const Json json = parse_json(read_file(config));
    require_known(json);
    return {.vocabulary = json.at("vocab_size"),
            .context = json.at("n_positions"),
            .layers = json.at("n_layer"),
            .heads = json.at("n_head"),
            .features = json.at("n_embd"),
            .mlp = number_or_zero(json, "n_inner"),
            .tied = json.value("tie_word_embeddings", true),
            .gelu_by_tanh = gelu_by_tanh(json),
            .epsilon = json.value("layer_norm_epsilon", 1e-5)};
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: {}", config.string(), error.what()));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", config.string(), error.what()));
  }
}

void load_gpt2(torch::nn::Module& module, const std::filesystem::path& file) {
  data::Safetensors weights;
  for (data::NamedArray& theirs : data::read_safetensors(file).arrays)
    if (!is_mask(theirs.name)) weights.arrays.push_back(as_here(std::move(theirs)));
  const ModelState state = state_of(module);
  ParameterNames names = all_names(module);
  names.emplace(kHead, kWords);  // one of a model that ties them
  require_fit(state, weights, names, "load_gpt2 " + file.string());
  for (const auto& [name, tensor] : state.parameters)
    copy_queued(tensor, tensor_of(*weights.find(name)));
}

}  // namespace tutti::models
