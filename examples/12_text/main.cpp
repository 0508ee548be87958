// A small GPT reads a text, character by character, and writes on.
#include <tutti/data.h>
#include <tutti/train.h>

#include <cstdio>
#include <string>

namespace data = tutti::data;
namespace models = tutti::models;

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  const std::string file = argc > 1 ? argv[1] : "input.txt";
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 2000;
  constexpr int64_t kContext = 64;

  const auto text = data::text(file, {.length = kContext, .end = 0.9});
  const auto held_out = data::text(file, {.length = kContext, .begin = 0.9});
  const models::GptOptions gpt{.vocabulary = text.num_classes(),
                               .context = kContext,
                               .layers = 4,
                               .heads = 4,
                               .features = 128};

  tutti::Model model(strategy, [&] { return models::gpt(gpt); });
  using namespace tutti::schedules;
  model.compile(
      {.optimizer = tutti::optim::Recipe(
           tutti::optim::adamw({.beta2 = 0.99, .weight_decay = 0.1}), {.global_norm = 1.0},
           {{.pattern = "*.bias", .weight_decay = 0}, {.pattern = "*ln_*", .weight_decay = 0}}),
       .loss = tutti::losses::sparse_categorical_crossentropy(),
       .metrics = {tutti::metrics::perplexity()},
       .learning_rate =
           warm_up(steps / 20, cosine({.initial = 1e-3, .decay_steps = steps, .alpha = 0.1}))});
  const auto history = model.fit(text.shuffle().batch(12), {.epochs = steps, .max_steps = steps});
  const double loss = model.evaluate(held_out.batch(128)).loss;
  if (!strategy.world().chief) return 0;
  std::printf("validation loss %.4f after %lld steps\n", loss,
              static_cast<long long>(history.steps));
  const auto prompt = data::text_labels("\n", text.classes(), "prompt");
  for (const int64_t token :
       models::generate(model, prompt, {.context = kContext, .temperature = 0.8, .seed = 1}))
    std::fputs(text.classes()[static_cast<size_t>(token)].c_str(), stdout);
  std::printf("\n");
}
