// GPT-2 as transformers saves it gives the same logits here: tests/tables/make_gpt2.py writes
// files.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include <nlohmann/json.hpp>

#include "tutti/data/safetensors.h"
#include "tutti/models/gpt.h"
#include "tutti/nn/graph_module.h"
#include "tutti/train/model/weights.h"

#include "tests/support/expect.h"
#include "tests/support/python.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using PlainJson = nlohmann::json;

const fs::path kGpt2 = "tests/tables/gpt2";

std::shared_ptr<nn::GraphModule> loaded_gpt2(const fs::path& folder) {
  auto module = nn::make_module(models::gpt(models::gpt2_options(folder / "config.json")));
  models::load_gpt2(*module, folder / "model.safetensors");
  return module;
}

/// The largest difference to what transformers has said.
double gpt2_error(nn::GraphModule& module, const fs::path& folder) {
  const PlainJson answers = PlainJson::parse(std::ifstream(folder / "answers.json"));
  std::vector<at::Tensor> rows;
  for (const PlainJson& row : answers.at("tokens"))
    rows.push_back(torch::tensor(row.get<std::vector<int64_t>>(), torch::kLong));
  const torch::NoGradGuard no_grad;
  const auto got = module.forward(torch::stack(rows));
  const auto wanted =
      torch::tensor(answers.at("logits").get<std::vector<double>>(), torch::kDouble);
  EXPECT_GT(wanted.abs().max().item<double>(), 1);
  return (got.flatten() - wanted).abs().max().item<double>();
}

TEST(Gpt2File, GivesTheLogitsOfTransformers) {
  EXPECT_LT(gpt2_error(*loaded_gpt2(kGpt2), kGpt2), 1e-5);
}

TEST(Gpt2File, WhatWasLoadedIsSavedAndReadAsAnyModel) {
  const TempFolder folder;
  save_weights(state_of(*loaded_gpt2(kGpt2)), folder / "own.safetensors");
  const auto module = nn::make_module(models::gpt(models::gpt2_options(kGpt2 / "config.json")));
  load_weights(state_of(*module), folder / "own.safetensors");
  EXPECT_LT(gpt2_error(*module, kGpt2), 1e-5);
}

// openai-community/gpt2 has no prefix, and the causal mask beside the weights.
TEST(Gpt2File, NamesOfOldFilesAreKnown) {
  const TempFolder folder;
  const data::Safetensors theirs = data::read_safetensors(kGpt2 / "model.safetensors");
  std::vector<data::NamedArray> arrays;
  for (const auto& [name, array] : theirs.arrays)
    arrays.push_back({name.substr(std::string("transformer.").size()), array});
  const auto mask = data::array_of(std::vector<float>(100), {1, 1, 10, 10});
  arrays.push_back({"h.0.attn.bias", mask});
  arrays.push_back({"h.1.attn.masked_bias", mask});
  data::write_safetensors(folder / "model.safetensors", arrays);
  const auto module = nn::make_module(models::gpt(models::gpt2_options(kGpt2 / "config.json")));
  models::load_gpt2(*module, folder / "model.safetensors");
  EXPECT_LT(gpt2_error(*module, kGpt2), 1e-5);
}

TEST(Gpt2File, WithoutTransposingItIsRefused) {
  const auto module = nn::make_module(models::gpt(models::gpt2_options(kGpt2 / "config.json")));
  EXPECT_THAT(
      message_of<DataError>([&] { load_weights(state_of(*module), kGpt2 / "model.safetensors"); }),
      HasSubstr("\"transformer.h.0.attn.c_attn.weight\" is float32 [16, 48] in the file, "
                "float32 [48, 16] in the model"));
  const auto before = weights_sha256(state_of(*module));
  auto options = models::gpt2_options(kGpt2 / "config.json");
  options.tied = false;
  EXPECT_THAT(message_of<DataError>([&] {
                models::load_gpt2(*nn::make_module(models::gpt(options)),
                                  kGpt2 / "model.safetensors");
              }),
              HasSubstr("lm_head.weight"));
  EXPECT_EQ(weights_sha256(state_of(*module)), before);
}

// One that was trained untied, with a config that says it is tied (the default).
TEST(Gpt2File, AHeadThatTheModelTiesIsTheWordsOrAnError) {
  const TempFolder folder;
  const data::Safetensors theirs = data::read_safetensors(kGpt2 / "model.safetensors");
  const Array words = *theirs.find("transformer.wte.weight");
  const auto load = [&](const Array& head) {
    std::vector<data::NamedArray> arrays = theirs.arrays;
    std::erase_if(arrays, [](const auto& one) { return one.name == "lm_head.weight"; });
    arrays.push_back({"lm_head.weight", head});
    data::write_safetensors(folder / "model.safetensors", arrays);
    const auto module = nn::make_module(models::gpt(models::gpt2_options(kGpt2 / "config.json")));
    models::load_gpt2(*module, folder / "model.safetensors");
    return gpt2_error(*module, kGpt2);
  };
  EXPECT_LT(load(words), 1e-5);
  std::vector<float> others(words.as<float>().begin(), words.as<float>().end());
  others.back() += 1;
  EXPECT_THAT(
      message_of<DataError>([&] { load(data::array_of(others, words.shape())); }),
      AllOf(HasSubstr("\"lm_head.weight\" has other values than \"transformer.wte.weight\""),
            HasSubstr("tied")));
  EXPECT_THAT(message_of<DataError>([&] { load(data::array_of(std::vector<float>{1}, {1})); }),
              HasSubstr("\"lm_head.weight\" has other values"));
}

TEST(Gpt2File, OtherModelsAreRefusedByTheirConfig) {
  const TempFolder folder;
  const std::string config = get_bytes(kGpt2 / "config.json");
  const auto refusal = [&](const std::string& from, const std::string& to) {
    put_bytes(folder / "config.json", std::regex_replace(config, std::regex(from), to));
    return message_of<DataError>([&] { models::gpt2_options(folder / "config.json"); });
  };
  EXPECT_THAT(refusal("\"model_type\": \"gpt2\"", "\"model_type\": \"llama\""),
              AllOf(HasSubstr("config.json"), HasSubstr("model_type is \"llama\", expected gpt2")));
  EXPECT_THAT(refusal("gelu_new", "relu"), HasSubstr("activation_function is \"relu\""));
  EXPECT_THAT(refusal("inverse_layer_idx\": false", "inverse_layer_idx\": true"),
              HasSubstr("scale_attn_by_inverse_layer_idx is true, expected false"));
  EXPECT_THAT(refusal("\"n_head\"", "\"heads\""), HasSubstr("n_head"));
  EXPECT_THAT(refusal("\\{", "["), HasSubstr("config.json"));
}

// Variants, as the library that is installed writes them.
TEST(Gpt2Peers, TransformersAndOursGiveTheSameLogits) {
  const Python python("torch, transformers");
  if (!python.why_not().empty()) GTEST_SKIP() << python.why_not();
  for (const std::string options :
       {"{}", R"({"tie_word_embeddings": false})", R"({"n_inner": 24, "n_head": 4})",
        R"({"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "n_layer": 3})"}) {
    const TempFolder folder;
    python.run("import runpy, sys\nsys.argv = ['make_gpt2.py', '" + folder.path().string() +
               "', '" + options + "']\nrunpy.run_path('tests/tables/make_gpt2.py')\n");
    EXPECT_LT(gpt2_error(*loaded_gpt2(folder.path()), folder.path()), 1e-5) << options;
  }
}

}  // namespace
}  // namespace tutti
