#include "tutti/cli/zoo.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"

namespace tutti::cli {

std::vector<ZooNetwork> zoo() {
  return {{"alexnet", models::alexnet()},
          {"vgg11", models::vgg11()},
          {"inception_v3", models::inception_v3()},
          {"resnet18", models::resnet18()},
          {"resnet50", models::resnet50()},
          {"doodle_cnn", models::doodle_cnn()},
          {"lenet", models::lenet()},
          {"mlp", models::mlp()},
          {"wide", models::wide()},
          {"vit", models::vit()},
          {"gpt", models::gpt({.vocabulary = 65, .context = 64})}};
}

ZooNetwork zoo_network(const std::string& name) {
  std::vector<std::string> known;
  for (ZooNetwork& one : zoo()) {
    if (one.name == name) return std::move(one);
    known.push_back(one.name);
  }
  throw UsageError(unknown_message("model", name, known));
}

}  // namespace tutti::cli
