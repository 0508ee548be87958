// The training loop written out: what Model::fit does in 03_quickdraw, one floor down, to the bit.
#include <tutti/tutti.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  auto strategy = tutti::strategy_from_flags(argc, argv);  // takes its own flags out of argv
  const std::string folder = argc > 1 ? argv[1] : "examples/data/quickdraw";
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 2;
  const std::string checkpoints = argc > 3 ? argv[3] : "";  // a folder: goes on where it was

  auto train = tutti::data::quickdraw(folder, {.split = "train"}).shuffle().batch(128);
  tutti::Replicated<tutti::nn::GraphModule> net(
      strategy, [] { return tutti::nn::make_module(tutti::models::doodle_cnn({.classes = 10})); });
  tutti::Optimizer optimizer(net, tutti::optim::adam({.learning_rate = 1e-3}));  // owns the state
  const tutti::Loss loss = tutti::losses::sparse_categorical_crossentropy();
  auto data = strategy.distribute(train);

  int64_t step = 0, epoch = 0, in_epoch = 0;
  std::vector<double> sums(strategy.world().local);  // of each replica's samples
  tutti::Checkpoint checkpoint(strategy,
                               {.folder = checkpoints, .every_steps = 20, .resume = true});
  checkpoint.add("net", net).add("adam", optimizer).add_own("sums", sums);
  checkpoint.add("step", step).add("epoch", epoch).add("in_epoch", in_epoch);
  checkpoint.restore();

  for (; epoch < epochs; ++epoch, in_epoch = 0) {
    for (auto&& batch : data.epoch(epoch, in_epoch)) {  // one part per replica
      strategy.run([&](tutti::ReplicaContext& replica) {
        if (batch.local_size(replica) == 0) return optimizer.abstain(replica);
        auto [x, y] = batch.local(replica);
        const tutti::nn::SampleContext place({.seed = strategy.options().seed,  // for dropout
                                              .step = step,
                                              .first_row = batch.first_row(replica)});
        auto output = net.local(replica)->forward(x);
        auto part = loss.kernel().scaled_sum(output, y, 1.0 / batch.global_size(),
                                             sums[replica.local_rank()]);
        optimizer.minimize(replica, part);  // backward, SUM over replicas, one update
      });
      ++in_epoch;
      checkpoint.after_step(++step);
    }
    const tutti::PerReplica<double> each(sums, strategy.world().first_rank);
    const double sum = strategy.reduce(tutti::ReduceOp::sum, each);
    if (strategy.world().chief)
      std::printf("epoch %d: mean loss %.17g\n", static_cast<int>(epoch),
                  sum / train.num_samples());
    sums.assign(sums.size(), 0);
  }
  checkpoint.end();
  if (strategy.world().chief)
    std::printf("weights %s\n",
                tutti::weights_sha256(tutti::state_of(*net.modules().module(0))).c_str());
}
