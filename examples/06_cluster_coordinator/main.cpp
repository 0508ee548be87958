// One program hands out training steps to workers, which train on parameter servers.
#include <tutti/tutti.h>

#include <cstdio>
#include <string>

namespace {

auto make_net() {
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10));
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
};

// Each worker's own order of the doodles.
const auto make_batches = tutti::remote("batches", [](tutti::RemoteWorker& worker) {
  auto train = tutti::data::quickdraw("examples/data/quickdraw", {.split = "train"});
  return tutti::BatchIterator(train.shuffle().batch(64), worker.index());
});

// One step: 64 samples, one update. Returns their mean loss.
const auto train_step = tutti::remote(
    "train step", [](tutti::RemoteWorker& worker, tutti::BatchIterator& batches) -> double {
      auto& trainer = worker.keep<Trainer>();
      const auto columns = batches.next();
      return trainer.strategy
          .run([&](tutti::ReplicaContext& replica) {
            auto loss = torch::cross_entropy_loss(trainer.net.local(replica)->forward(columns[0]),
                                                  columns[1]);
            trainer.optimizer.minimize(replica, loss);
            return loss.item<double>();
          })
          .local(0);
    });

void program(tutti::ClusterCoordinator& cluster, int64_t steps) {
  const auto test = tutti::data::quickdraw("examples/data/quickdraw", {.split = "test"}).batch(500);
  tutti::Model model(on_servers(), make_net);  // the same parameters: the coordinator evaluates
  model.compile({.optimizer = tutti::optim::adam({.learning_rate = 1e-3}),
                 .loss = tutti::losses::sparse_categorical_crossentropy(),
                 .metrics = {tutti::metrics::accuracy()}});
  const auto batches = cluster.create_per_worker_dataset(make_batches);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<tutti::RemoteValue<double>> losses;
    for (int64_t i = 0; i < steps; ++i) losses.push_back(cluster.schedule(train_step, batches));
    cluster.join();
    double sum = 0;
    for (const double loss : cluster.fetch(losses)) sum += loss;
    const auto scores = model.evaluate(test);
    std::printf("epoch %d: mean loss %.3f, test accuracy %.3f\n", epoch,
                sum / static_cast<double>(steps), scores.at("accuracy"));
  }
  model.save("doodle.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 300;
  return tutti::coordinate([=](tutti::ClusterCoordinator& cluster) { program(cluster, steps); });
}
