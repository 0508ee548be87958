// A network learns to tell photos apart, from scratch: folders of files to a tested model.
#include <tutti/data.h>
#include <tutti/train.h>

#include <cstdio>
#include <string>

namespace data = tutti::data;
namespace transforms = tutti::data::transforms;

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  const std::string folder = argc > 1 ? argv[1] : "photos";
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 30;
  // Those of ImageNet's photos.
  const auto normalize = transforms::normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});

  auto photos = data::image_folder(folder + "/train");
  auto train = photos.shuffle()
                   .map(transforms::decode_crop(64))  // another crop in every epoch
                   .map(transforms::random_horizontal_flip())
                   .map(normalize)
                   .batch(20);
  auto held_out = data::image_folder(folder + "/val", {.classes = photos.classes()})
                      .map(transforms::decode_center_crop(73, 64))
                      .map(normalize)
                      .batch(100);

  tutti::Model model(strategy, [&] {
    return tutti::models::doodle_cnn({.classes = photos.num_classes(), .input = {3, 64, 64}});
  });
  model.compile({.optimizer = tutti::optim::adam({.learning_rate = 1e-3}),
                 .loss = tutti::losses::sparse_categorical_crossentropy(),
                 .metrics = {tutti::metrics::accuracy()}});
  const auto history = model.fit(
      train, {.epochs = epochs, .validation = held_out, .loader = {.on_bad = data::replace()}});
  if (!strategy.world().chief) return 0;
  std::printf("test accuracy %.4f\n", history.last("val_accuracy"));
}
