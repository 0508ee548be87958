// The job that `show pipeline` draws: stages are groups of dense layers.
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include "tutti/base/threads.h"
#include "tutti/cli/show/local_members.h"
#include "tutti/cli/show/pipeline.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/parallel/stages/pipeline.h"

namespace tutti::cli {
namespace {

// B rows of a microbatch, D features of every layer: a few milliseconds a stage.
constexpr int64_t kMicrobatch_B = 128;
constexpr int64_t kFeatures_D = 384;
constexpr int kLayersOfStage = 2;

parallel::Stage stage_of_layers(bool first, bool last) {
  torch::nn::Sequential layers;
  for (int i = 0; i < kLayersOfStage; ++i) {
    layers->push_back(torch::nn::Linear(kFeatures_D, kFeatures_D));
    layers->push_back(torch::nn::Tanh());
  }
  const parallel::Border border{.shape = {kFeatures_D}};
  parallel::Stage stage{.module = layers.ptr(), .forward = [layers](at::TensorList x) mutable {
                          return std::vector<at::Tensor>{layers->forward(x[0])};
                        }};
  if (!first) stage.inputs = {border};
  if (!last) stage.outputs = {border};
  return stage;
}

}  // namespace

PipelineTrace run_pipeline(const mesh::Schedule& schedule) {
  const int ranks = schedule.ranks();
  const auto engines = make_shm_threads(ranks);
  std::optional<Recorder> recorder;
  const int threads = at::get_num_threads();
  at_once(ranks, "a rank", [&](int rank) {
    at::set_num_threads(1);
    Group group(engines[static_cast<size_t>(rank)]);
    std::vector<parallel::Stage> chunks;
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      const int stage = schedule.stage_of(rank, chunk);
      chunks.push_back(stage_of_layers(stage == 0, stage + 1 == schedule.stages()));
    }
    parallel::Pipeline pipeline(group, schedule, std::move(chunks), {.limit = kShowLimit});
    const auto m = static_cast<size_t>(schedule.microbatches);
    const parallel::Pipeline::Batch batch{
        .sizes = std::vector<int64_t>(m, kMicrobatch_B),
        .inputs = [](int) { return std::vector{at::ones({kMicrobatch_B, kFeatures_D})}; },
        .loss = [](int, at::TensorList y) { return y[0].square().mean(); },
        .place = {}};
    pipeline.step(batch);  // what comes first allocates
    group.barrier(kShowLimit);
    if (rank == 0) recorder.emplace(std::vector<std::string>{"pipeline."});
    group.barrier(kShowLimit);
    pipeline.step(batch);
  });
  at::set_num_threads(threads);
  return {.schedule = schedule,
          .events = recorder->end(),
          .border_bytes = kMicrobatch_B * kFeatures_D * int64_t{sizeof(float)}};
}

}  // namespace tutti::cli
