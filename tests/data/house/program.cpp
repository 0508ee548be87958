// Uses what the patches beside it add for programs: an engine, a source, an operator, a loss.
#include <torch/torch.h>

#include <cstdio>

#include "tutti/base/file.h"
#include "tutti/cluster/join/engine_choice.h"
#include "tutti/comm/still/still.h"
#include "tutti/data/sources/floats.h"
#include "tutti/nn/graph_module.h"
#include "tutti/train/losses/losses.h"

namespace {

bool engine_is_found() {
  const auto choice = tutti::choose_engine({.asked = "still", .replicas_per_host = {2}});
  return choice.engine == "still" && tutti::make_still(1, 2)->size() == 2;
}

bool source_is_found(const char* path) {
  tutti::write_file_atomically(path, std::string(24, '\0'));
  return tutti::data::floats(path, 3).num_samples() == 2;
}

bool operator_is_found() {
  const auto x = tutti::nn::input({2});
  const auto module = tutti::nn::make_module(tutti::nn::Graph(x, tutti::nn::softsign()(x)));
  return at::allclose(module->forward(at::ones({3, 2})), at::full({3, 2}, 0.5));
}

bool loss_is_found() {
  const auto loss = tutti::losses::loss_by_name("pseudo_huber");
  return loss.kernel().per_sample(at::zeros({4}), at::zeros({4})).eq(0).all().item<bool>();
}

}  // namespace

int main(int /*argc*/, char** argv) {
  if (!engine_is_found() || !source_is_found(argv[1]) || !operator_is_found() || !loss_is_found())
    return 1;
  std::puts("found");
}
