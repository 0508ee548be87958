// Doodles as bitmaps or as strokes, by Model::fit: MAP@3 is watched, and the best weights are kept.
#include <algorithm>

#include "doodles.h"

namespace {

template <class Factory>
void train(const tutti::Strategy& strategy, const doodles::Arguments& arguments,
           const Factory& network) {
  const auto [drawings, test] = doodles::drawings_of(arguments);
  const int64_t classes = drawings.num_classes();
  tutti::Model model(strategy, [&] { return network(classes); });
  model.compile({.optimizer = tutti::optim::adam(),
                 .loss = tutti::losses::sparse_categorical_crossentropy(),
                 .metrics = {tutti::metrics::accuracy(), tutti::metrics::map_at_k(3)},
                 .learning_rate = doodles::rate_of(arguments, drawings)});
  const std::string best = arguments.network + ".safetensors";
  const auto history = model.fit(
      drawings,
      {.epochs = arguments.epochs,
       .validation = test,
       .callbacks = {tutti::callbacks::model_checkpoint(
                         {.path = best, .monitor = "val_map_at_3", .save_best_only = true}),
                     tutti::callbacks::early_stopping(
                         {.monitor = "val_map_at_3", .patience = arguments.strokes() ? 100 : 3})},
       .max_steps = arguments.steps,
       .verbose = 2});
  const std::string weights = model.weights_sha256();
  if (!strategy.world().chief) return;
  const auto each = history.column("val_map_at_3");
  std::printf("MAP@3 %.9f after %lld steps, at best %.4f (%s)\n", history.last("val_map_at_3"),
              static_cast<long long>(history.steps), *std::ranges::max_element(each), best.c_str());
  std::printf("weights %s\n", weights.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  return doodles::exit_code_of(argv[0], [&] {
    const auto arguments = doodles::arguments_of(argc, argv);
    if (arguments.strokes())
      train(strategy, arguments, [](int64_t classes) { return doodles::StrokeNet(classes); });
    else
      train(strategy, arguments, doodles::bitmap_net);
  });
}
