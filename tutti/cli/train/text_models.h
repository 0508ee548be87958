/// The models of text on the command line: their flags, and what is saved of them. Without
/// LibTorch. Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/data/spec.h"
#include "tutti/nn/graph.h"

namespace tutti::cli {

struct Command;

inline constexpr const char* kGpt = "gpt";

/// What was typed; unset is empty.
struct GptFlags {
  std::optional<int64_t> layers, heads, features;
  std::optional<double> dropout;
  bool own_head = false;
};

void add_gpt_flags(Command& command, GptFlags& flags);

/// UsageError where a flag of gpt is given for another model.
void check_gpt_flags(const std::string& model, const GptFlags& flags);

/// The gpt of these flags for text as `spec` has it. UsageError as models::gpt().
models::GptOptions gpt_options(const GptFlags& flags, const DataSpec& spec);

/// Names of the zoo's models and of gpt, sorted; and in words.
std::vector<std::string> all_model_names();
std::string all_model_words();

/// The model of that name for data as `spec` has it: gpt as it was trained, or one of the zoo.
/// UsageError for gpt and data that is no text, and as model_of().
nn::Graph model_for_spec(const std::string& name, const DataSpec& spec);

}  // namespace tutti::cli
