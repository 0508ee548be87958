// A network learns Google's doodles: the whole of a training program.
#include <tutti/train.h>

#include <string>

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  const std::string folder = argc > 1 ? argv[1] : "examples/data/quickdraw";
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 3;

  auto train = tutti::data::quickdraw(folder, {.split = "train"}).shuffle().batch(128);
  auto test = tutti::data::quickdraw(folder, {.split = "test"}).batch(256);

  tutti::Model model(strategy, [] { return tutti::models::doodle_cnn({.classes = 10}); });
  model.compile({.optimizer = tutti::optim::adam({.learning_rate = 1e-3}),
                 .loss = tutti::losses::sparse_categorical_crossentropy(),
                 .metrics = {tutti::metrics::accuracy()}});
  model.fit(train, {.epochs = epochs, .validation = test});
  model.save("doodle.safetensors");
}
