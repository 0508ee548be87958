#include "tutti/cli/train/text_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/train/job.h"
#include "tutti/models/models.h"

namespace tutti::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 20;

}  // namespace

void add_gpt_flags(Command& command, GptFlags& flags) {
  const models::GptOptions usual;
  command.group = "Model gpt";
  const auto number = [&](const char* flag, std::optional<int64_t>& value, const char* help,
                          int64_t preset) {
    command.add(flag, "N", &value, whole_number(1, kMost),
                fmt::format("{} (default: {})", help, preset));
  };
  number("--layers", flags.layers, "Blocks of attention and two dense layers", usual.layers);
  number("--heads", flags.heads, "Heads of each attention; a divisor of the features", usual.heads);
  number("--features", flags.features, "Of each position", usual.features);
  command.add("--dropout", "P", &flags.dropout, number_between(0, 0.99),
              "Of the embeddings, and of what attention and dense layers add (default: 0)");
  command.flag("--own-head", &flags.own_head,
               "The last layer has a weight of its own, not that of the embedding");
  command.group = "Options";
}

void check_gpt_flags(const std::string& model, const GptFlags& flags) {
  if (model == kGpt) return;
  const char* flag = flags.layers     ? "--layers"
                     : flags.heads    ? "--heads"
                     : flags.features ? "--features"
                     : flags.dropout  ? "--dropout"
                     : flags.own_head ? "--own-head"
                                      : nullptr;
  if (flag != nullptr)
    throw UsageError(fmt::format("{}: is for model gpt; the model is {}", flag, model));
}

models::GptOptions gpt_options(const GptFlags& flags, const DataSpec& spec) {
  models::GptOptions options{.vocabulary = std::ssize(spec.classes),
                             .context = spec.shape.at(0),
                             .tied = !flags.own_head,
                             .dropout = flags.dropout.value_or(0)};
  options.layers = flags.layers.value_or(options.layers);
  options.heads = flags.heads.value_or(options.heads);
  options.features = flags.features.value_or(options.features);
  models::gpt(options);  // what it refuses is refused here
  return options;
}

std::vector<std::string> all_model_names() {
  std::vector<std::string> names = models::model_names();
  names.insert(std::ranges::lower_bound(names, kGpt), kGpt);
  return names;
}

std::string all_model_words() { return models::model_words() + "; for text gpt"; }

nn::Graph model_for_spec(const std::string& name, const DataSpec& spec) {
  if (spec.gpt) return models::gpt(*spec.gpt);
  if (name == kGpt)
    throw UsageError(
        fmt::format("gpt: is for text; the model was trained on {}", data::name_of(spec.kind)));
  return model_of(name, spec.shape, std::ssize(spec.classes));
}

}  // namespace tutti::cli
