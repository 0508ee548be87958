// Doodles as bitmaps or as strokes, by a loop of one's own: the training of main.cpp, written out.
#include <vector>

#include "doodles.h"

namespace {

template <class Net>
double test_of(tutti::Strategy strategy, Net& net, tutti::DistributedDataset& test) {
  tutti::RunningMetric map(strategy, tutti::metrics::map_at_k(3));
  net.modules().train(false);
  for (auto&& batch : test.epoch(0))
    strategy.run([&](tutti::ReplicaContext& replica) {
      if (batch.local_size(replica) == 0) return;
      const torch::NoGradGuard no_grad;
      auto [x, y] = batch.local(replica);
      map.update_state(replica, net.local(replica)->forward(x), y);
    });
  net.modules().train();
  return map.result();
}

template <class Module, class Factory>
void train(tutti::Strategy strategy, const doodles::Arguments& arguments, const Factory& network) {
  const auto [drawings, held_out] = doodles::drawings_of(arguments);
  const int64_t classes = drawings.num_classes();
  tutti::Replicated<Module> net(strategy, [&] { return network(classes); });
  tutti::Optimizer optimizer(net, tutti::optim::adam());
  const auto rate = doodles::rate_of(arguments, drawings);
  const tutti::Loss loss = tutti::losses::sparse_categorical_crossentropy();
  auto data = strategy.distribute(drawings), test = strategy.distribute(held_out);

  int64_t step = 0;
  double map = 0;
  std::vector<double> sums(strategy.world().local);  // of each replica's samples
  const auto over = [&] { return arguments.steps > 0 && step == arguments.steps; };
  for (int64_t epoch = 0; epoch < arguments.epochs && !over(); ++epoch) {
    int64_t samples = 0;
    for (auto&& batch : data.epoch(epoch)) {
      optimizer.set_learning_rate(rate(step));
      strategy.run([&](tutti::ReplicaContext& replica) {
        if (batch.local_size(replica) == 0) return optimizer.abstain(replica);
        auto [x, y] = batch.local(replica);
        const tutti::nn::SampleContext place({.seed = strategy.options().seed,  // for dropout
                                              .step = step,
                                              .first_row = batch.first_row(replica)});
        auto part = loss.kernel().scaled_sum(net.local(replica)->forward(x), y,
                                             1.0 / batch.global_size(), sums[replica.local_rank()]);
        optimizer.minimize(replica, part);  // backward, SUM over replicas, one update
      });
      samples += batch.global_size();
      ++step;
      if (over()) break;
    }
    const tutti::PerReplica<double> each(sums, strategy.world().first_rank);
    const double sum = strategy.reduce(tutti::ReduceOp::sum, each);
    map = test_of(strategy, net, test);
    if (strategy.world().chief)
      std::printf("epoch %lld: mean loss %.4f, val_map_at_3 %.4f\n",
                  static_cast<long long>(epoch + 1), sum / static_cast<double>(samples), map);
    sums.assign(sums.size(), 0);
  }
  if (strategy.world().chief)
    std::printf("MAP@3 %.9f after %lld steps\nweights %s\n", map, static_cast<long long>(step),
                tutti::weights_sha256(tutti::state_of(*net.modules().module(0))).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // --strategy mirrored --replicas 2
  return doodles::exit_code_of(argv[0], [&] {
    const auto arguments = doodles::arguments_of(argc, argv);
    if (arguments.strokes())
      train<doodles::StrokeNet>(strategy, arguments,
                                [](int64_t classes) { return doodles::StrokeNet(classes); });
    else
      train<tutti::nn::GraphModule>(strategy, arguments, [](int64_t classes) {
        return tutti::nn::make_module(doodles::bitmap_net(classes));
      });
  });
}
