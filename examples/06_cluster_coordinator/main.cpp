// One program hands out training steps to workers, which train on parameter servers.
#include <tutti/tutti.h>

#include <cstdio>
#include <optional>
#include <string>

namespace {

auto make_net() {
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10));
}

tutti::data::Dataset doodles(const std::string& split) {
  return tutti::data::quickdraw("examples/data/quickdraw", {.split = split});
}

tutti::Strategy on_servers() {
  return tutti::Strategy(
      {.kind = "parameter_server", .served = {.staleness = tutti::ps::Staleness::unbounded()}});
}

// What a worker keeps between steps: the parameters are on the servers, this is its copy.
struct Trainer {
  tutti::Strategy strategy = on_servers();
  tutti::Replicated<torch::nn::Sequential> net{strategy, make_net};
  tutti::Optimizer optimizer{net, tutti::optim::adam({.learning_rate = 1e-3})};
  tutti::DistributedDataset data = strategy.distribute(doodles("train").shuffle().batch(64));
  std::optional<tutti::DistributedDataset::Batches> epoch;
  std::optional<tutti::DistributedDataset::Batches::iterator> at;
  int64_t number = -1;

  // A batch of the epoch that no other worker has: the servers give them out, and know which are
  // done. None: all are.
  std::optional<tutti::DistributedBatch> next_of(int64_t wanted) {
    if (number != wanted) {
      epoch.emplace(data.epoch(number = wanted));
      at.emplace(epoch->begin());
    } else if (*at != epoch->end()) {
      ++*at;
    }
    return *at == epoch->end() ? std::nullopt : std::optional(**at);
  }
};

// One step: 64 samples of that epoch, one update. Returns their losses; none where all are done.
const auto train_step =
    tutti::remote("train step", [](tutti::RemoteWorker& worker, int64_t epoch) -> at::Tensor {
      auto& trainer = worker.keep<Trainer>();
      const auto batch = trainer.next_of(epoch);
      if (!batch) return torch::empty({0});
      return trainer.strategy
          .run([&](tutti::ReplicaContext& replica) {
            auto [x, y] = batch->local(replica);
            auto each = torch::cross_entropy_loss(trainer.net.local(replica)->forward(x), y, {},
                                                  at::Reduction::None);
            trainer.optimizer.minimize(replica, each, batch->global_size());
            return each.detach();
          })
          .local(0);
    });

void program(tutti::ClusterCoordinator& cluster, int64_t epochs) {
  const auto test = doodles("test").batch(500);
  tutti::Model model(on_servers(), make_net);  // the same parameters: the coordinator evaluates
  model.compile({.optimizer = tutti::optim::adam({.learning_rate = 1e-3}),
                 .loss = tutti::losses::sparse_categorical_crossentropy(),
                 .metrics = {tutti::metrics::accuracy()}});
  // Each worker also learns once an epoch that none is left.
  const int64_t steps = doodles("train").batch(64).num_batches() + cluster.num_workers();
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    std::vector<tutti::RemoteValue<at::Tensor>> losses;
    for (int64_t i = 0; i < steps; ++i) losses.push_back(cluster.schedule(train_step, epoch));
    cluster.join();
    const auto all = torch::cat(cluster.fetch(losses));
    if (all.numel() == 0) continue;  // done before: the job goes on from a snapshot
    std::printf("epoch %d: mean loss %.3f of %d samples, test accuracy %.3f\n",
                static_cast<int>(epoch), all.mean().item<double>(), static_cast<int>(all.numel()),
                model.evaluate(test).at("accuracy"));
  }
  model.save("doodle.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t epochs = argc > 1 ? std::stoll(argv[1]) : 2;
  return tutti::coordinate([=](tutti::ClusterCoordinator& cluster) { program(cluster, epochs); });
}
