// DistributedOptimizer against one process with plain LibTorch on the joined batch: what DDP's and
// Horovod's loops do beside step().
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/cluster/join/join.h"
#include "tutti/comm/group/more_reductions.h"
#include "tutti/comm/group/objects.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/strategy/on_group.h"
#include "tutti/sync/replicated/distributed_optimizer.h"
#include "tutti/sync/tensors.h"

#include "tests/ranks/loops/one_process.h"
#include "tests/support/expect.h"
#include "tests/support/run_workers.h"

namespace tutti {
namespace {

// Rank r has 4 + 3 r rows.
void weighted_parts(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), momentum()),
      plain(both.whole->parameters(), momentum());
  DistributedOptimizer optimizer(*both.model, sgd, world);
  const int64_t begins[] = {0, 4, 11};
  for (int step = 0; step < 3; ++step) {
    const int64_t own = begins[world.rank()], end = begins[world.rank() + 1];
    optimizer.zero_grad();
    optimizer.set_weight(static_cast<double>(end - own));
    loss_of(both.model, 20 * step + own, end - own).backward();
    optimizer.step();
    plain.zero_grad();
    loss_of(both.whole, 20 * step, 11).backward();
    plain.step();
  }
  both.compare("weights of parts");
}

// Horovod's MNIST example: passes are added up, the last of them sends.
void several_passes(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), momentum()),
      plain(both.whole->parameters(), momentum());
  DistributedOptimizer optimizer(*both.model, sgd, world,
                                 {.backward_passes_per_step = 3, .prescale = 0.25, .postscale = 4});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    // The last step has a pass less: step() sends what there is.
    const int passes = step == 2 ? 2 : 3;
    for (int pass = 0; pass < passes; ++pass)
      (loss_of(both.model, 12 * step + 4 * pass + 2 * world.rank(), 2) / passes).backward();
    optimizer.step();
    plain.zero_grad();
    loss_of(both.whole, 12 * step, 4 * passes).backward();
    plain.step();
  }
  both.compare("several passes");
}

// 10 batches on rank 0, 7 on rank 1, clipped; and a step of both afterwards.
void uneven_ends(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), momentum()),
      plain(both.whole->parameters(), momentum());
  DistributedOptimizer optimizer(*both.model, sgd, world);
  const auto clip = [](Sequential& of) {
    torch::nn::utils::clip_grad_norm_(of->parameters(), 0.2);
  };
  const auto step = [&](int64_t row) {
    optimizer.zero_grad();
    loss_of(both.model, row, 2).backward();
    optimizer.synchronize();
    clip(both.model);
    optimizer.step();
  };
  const int own = world.rank() == 0 ? 10 : 7;
  for (int batch = 0; batch < own; ++batch) step(4 * batch + 2 * world.rank());
  const int last = optimizer.join();
  step(100 + 2 * world.rank());
  for (int batch = 0; batch < 11; ++batch) {
    plain.zero_grad();
    loss_of(both.whole, batch == 10 ? 100 : 4 * batch, batch < 7 || batch == 10 ? 4 : 2).backward();
    clip(both.whole);
    plain.step();
  }
  both.compare(fmt::format("uneven ends, last {}", last));
}

// LBFGS, which calls its closure as often as its line search wants; rank 1 has a step less. Sums
// are those of the ranks, halved.
void closures(const test::Rank& rank, Group world, ReduceOp op) {
  OneProcess both(rank);
  both.model->to(torch::kDouble);
  both.whole->to(torch::kDouble);
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe");
  torch::optim::LBFGS lbfgs(both.model->parameters(), options),
      plain(both.whole->parameters(), options);
  const bool sums = op == ReduceOp::sum;
  DistributedOptimizer optimizer(*both.model, lbfgs, world,
                                 {.op = op, .postscale = sums ? 0.5 : 1, .average_losses = true});
  const auto step = [](auto& of, Sequential& model, int64_t first, int64_t count,
                       double scale = 1) {
    of.step([&] {
      of.zero_grad();
      auto loss = loss_of(model, first, count) * scale;
      loss.backward();
      return loss;
    });
  };
  const auto own = [&](int number) {
    step(optimizer, both.model, 8 * number + 4 * world.rank(), 4);
  };
  for (int number = 0; number < 3 - world.rank(); ++number) own(number);
  optimizer.join();
  own(3);
  for (int number = 0; number < 4; ++number)
    step(plain, both.whole, 8 * number, number == 2 ? 4 : 8, number == 2 && sums ? 0.5 : 1);
  both.compare(sums ? "closures of sums" : "closures of means");
}

// A step that all ranks refuse leaves nothing to the next.
void after_a_mismatch(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), momentum()),
      plain(both.whole->parameters(), momentum());
  DistributedOptimizer optimizer(*both.model, sgd, world);
  const auto backward = [&] {
    const auto loss = loss_of(both.model, 4 * world.rank(), 4);
    loss.backward();
    return loss;
  };
  const std::string refusal = refusal_of<Mismatch>([&] {
    if (world.rank() == 0) {
      optimizer.step(backward);
    } else {
      backward();
      optimizer.step();
    }
  });
  rank.mark("refused: " + refusal);
  backward();
  optimizer.step();
  loss_of(both.whole, 0, 8).backward();
  plain.step();
  both.compare("after a mismatch");
}

// In the place of another one, so that the optimizer has as many.
void parameter_replaced(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  const auto made = [](Sequential& model) {
    const auto all = model->parameters();
    return torch::optim::SGD({all[1], all[2], all[3]}, momentum());
  };
  torch::optim::SGD sgd = made(both.model), plain = made(both.whole);
  DistributedOptimizer optimizer(*both.model, sgd, world);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) sgd.param_groups()[0].params()[0] = both.model->parameters()[0];
    if (step == 2) plain.param_groups()[0].params()[0] = both.whole->parameters()[0];
    optimizer.zero_grad();
    loss_of(both.model, 8 * step + 4 * world.rank(), 4).backward();
    optimizer.step();
    plain.zero_grad();
    loss_of(both.whole, 8 * step, 8).backward();
    plain.step();
  }
  both.compare("parameter replaced");
}

// The last layer alone; the first one comes, its bias frozen; the last is frozen and thawed.
void parameters_come_and_go(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->ptr(2)->parameters(), momentum()),
      plain(both.whole->ptr(2)->parameters(), momentum());
  DistributedOptimizer optimizer(*both.model, sgd, world);
  const auto change = [](int step, Sequential& model, torch::optim::Optimizer& of) {
    auto first = model->ptr(0)->parameters(), last = model->ptr(2)->parameters();
    if (step == 1) first[1].set_requires_grad(false);
    if (step == 1) of.add_param_group(torch::optim::OptimizerParamGroup(first));
    if (step == 3) last[0].set_requires_grad(false);
    if (step == 4) first[1].set_requires_grad(true);
    if (step == 5) last[0].set_requires_grad(true);
  };
  for (int step = 0; step < 7; ++step) {
    change(step, both.model, sgd);
    optimizer.zero_grad();
    loss_of(both.model, 8 * step + 4 * world.rank(), 4).backward();
    optimizer.step();
    change(step, both.whole, plain);
    plain.zero_grad();
    loss_of(both.whole, 8 * step, 8).backward();
    plain.step();
  }
  both.compare("parameters that come and go");
}

// Linear and batch norm see the global batch, and their gradients come from all of it.
void statistics_of_all(const test::Rank& rank, Group world) {
  OnGroup ranks(world);
  const auto make = [](const auto& norm) {
    torch::manual_seed(5);
    return Sequential(Linear(torch::nn::LinearOptions(6, 5).bias(false)), norm, Linear(5, 1));
  };
  Sequential synced = make(nn::SyncBatchNorm(5)), whole = make(torch::nn::BatchNorm1d(5));
  torch::optim::SGD sgd(synced->parameters(), momentum()), plain(whole->parameters(), momentum());
  OneProcess both(rank, synced, whole);
  DistributedOptimizer optimizer(*synced, sgd, world);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(synced, 8 * step + 4 * world.rank(), 4).backward();
    optimizer.step();
    plain.zero_grad();
    loss_of(whole, 8 * step, 8).backward();
    plain.step();
  }
  both.compare("batch norm of all");
  const auto mine = torch::full({1, 2}, 1.0 + world.rank(), torch::kDouble).requires_grad_();
  const auto all = nn::all_gather(ranks.replica(), mine);
  mine.matmul(all.t()).sum().backward();
  rank.mark(fmt::format("gradient {}", mine.grad()[0][0].item<double>()));
}

// Two tables, rows of which ranks have in common, and a layer.
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse)
      : words(register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 4).sparse(sparse)))),
        bags(register_module(
            "bags", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(9, 4).sparse(sparse)))),
        last(register_module("last", Linear(4, 1))) {}
  at::Tensor forward(const at::Tensor& keys) {
    const auto bag = bags->forward(keys % 9);
    return last->forward(words->forward(keys).mean(1) + bag);
  }
  torch::nn::Embedding words;
  torch::nn::EmbeddingBag bags;
  Linear last;
};
TORCH_MODULE(Words);

// Rank 1 has no rows in the second step.
void sparse_rows(const test::Rank& rank, Group world) {
  const auto make = [](bool sparse) {
    torch::manual_seed(5);
    return Sequential(Words(sparse));
  };
  OneProcess both(rank, make(true), make(false));
  torch::optim::SGD sgd(both.model->parameters(), 0.5), plain(both.whole->parameters(), 0.5);
  DistributedOptimizer optimizer(*both.model, sgd, world, {.prescale = 0.5, .postscale = 2});
  const auto loss = [](Sequential& of, int64_t step, int64_t first, int64_t count) {
    const auto keys = (torch::arange(first, first + count, torch::kLong).unsqueeze(1) * 7 +
                       torch::arange(3) * 3 + step) %
                      20;
    return of->forward(keys).square().mean();
  };
  for (int step = 0; step < 4; ++step) {
    const int rows = step == 1 ? (world.rank() == 0 ? 4 : 0) : 3 + world.rank();
    optimizer.zero_grad();
    optimizer.set_weight(rows);
    if (rows > 0) loss(both.model, step, world.rank() == 0 ? 0 : 3, rows).backward();
    optimizer.step();
    plain.zero_grad();
    loss(both.whole, step, 0, step == 1 ? 4 : 7).backward();
    plain.step();
  }
  both.compare("sparse rows");
}

// A function in the place of the sum: all buckets come to it.
void hook(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), momentum()),
      plain(both.whole->parameters(), momentum());
  int64_t elements = 0;
  const BucketHook function = [&](Group& group, MemorySpan bucket, ReduceOp op, Millis limit) {
    elements += bucket.num_elements;
    return group.all_reduce(bucket, op, limit);
  };
  DistributedOptimizer optimizer(
      *both.model, sgd, world,
      {.buckets = {
           .bucket_bytes = 64, .first_bucket_bytes = 64, .reduction = reduction_by(function)}});
  loss_of(both.model, 4 * world.rank(), 4).backward();
  optimizer.step();
  loss_of(both.whole, 0, 8).backward();
  plain.step();
  both.compare(fmt::format("hook of {} elements", elements >= 41 ? "all" : "some"));
}

// The formula of the paper, in double, tensor by tensor.
void adasums(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), 0.1), plain(both.whole->parameters(), 0.1);
  DistributedOptimizer optimizer(*both.model, sgd, world, {.adasum = true});
  loss_of(both.model, 4 * world.rank(), 4).backward();
  optimizer.step();
  std::vector<std::vector<at::Tensor>> parts;
  for (int part = 0; part < 2; ++part) {
    both.whole->zero_grad();
    loss_of(both.whole, 4 * part, 4).backward();
    parts.emplace_back();
    for (const auto& each : both.whole->parameters())
      parts.back().push_back(each.grad().to(torch::kDouble));
  }
  auto parameters = both.whole->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor &a = parts[0][i], &b = parts[1][i];
    const auto product = (a * b).sum();
    const auto sum =
        (1 - product / (2 * a.square().sum())) * a + (1 - product / (2 * b.square().sum())) * b;
    parameters[i].mutable_grad() = sum.to(torch::kFloat);
  }
  plain.step();
  both.compare("adasum");
}

// Horovod's examples/pytorch/pytorch_mnist.py, part by part: broadcast of parameters and of the
// optimizer's state from rank 0, a learning rate times the ranks, one backward pass and step a
// batch, the mean of a metric; and join() with 10 batches here and 7 there.
struct DigitsImpl : torch::nn::Module {
  DigitsImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(1, 4, 3))),
        conv2(register_module("conv2",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).padding(1)))),
        fc1(register_module("fc1", Linear(6, 12))),
        fc2(register_module("fc2", Linear(12, 4))) {}
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2));
    return torch::log_softmax(fc2(torch::relu(fc1(x.flatten(1)))), 1);
  }
  torch::nn::Conv2d conv1, conv2;
  Linear fc1, fc2;
};
TORCH_MODULE(Digits);

at::Tensor images(int64_t first, int64_t count) {
  const auto pixels = torch::arange(first * 64, (first + count) * 64, torch::kDouble);
  return torch::sin(pixels * 0.37).to(torch::kFloat).view({count, 1, 8, 8});
}

at::Tensor digits_loss(Sequential& model, int64_t first, int64_t count) {
  const auto classes = torch::arange(first, first + count, torch::kLong) % 4;
  return torch::nll_loss(model->forward(images(first, count)), classes);
}

void mnist(const test::Rank& rank, Group world) {
  torch::manual_seed(1 + world.rank());
  Sequential model(Digits{});
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(0.01 * world.size()).momentum(0.5));
  broadcast_parameters(*model, world);
  broadcast_optimizer_state(sgd, world);
  torch::manual_seed(1);
  OneProcess both(rank, model, Sequential(Digits()));
  torch::optim::SGD plain(both.whole->parameters(),
                          torch::optim::SGDOptions(0.01 * world.size()).momentum(0.5));
  DistributedOptimizer optimizer(*model, sgd, world, {.op = ReduceOp::mean});
  const int batches = world.rank() == 0 ? 10 : 7;
  for (int batch = 0; batch < batches; ++batch) {
    optimizer.zero_grad();
    const auto loss = digits_loss(model, 8 * batch + 4 * world.rank(), 4);
    loss.backward();
    optimizer.step();
  }
  optimizer.join();
  for (int batch = 0; batch < 10; ++batch) {
    plain.zero_grad();
    digits_loss(both.whole, 8 * batch, batch < 7 ? 8 : 4).backward();
    plain.step();
  }
  both.compare("mnist");
  double loss = digits_loss(model, 100 + 4 * world.rank(), 4).item<double>();
  world.all_reduce(span_of(std::span(&loss, 1)), ReduceOp::mean).wait();
  const double whole = digits_loss(both.whole, 100, 8).item<double>();
  rank.mark(fmt::format("metric as one: {}", std::abs(loss - whole) < 1e-6));
}

// examples/pytorch/pytorch_imagenet_resnet50.py: batches_per_allreduce passes a step, each of a
// part of the batch and divided by their number; gradients clipped between synchronize() and
// step(); the epoch to go on from is rank 0's; statistics of all ranks in the batch norms.
template <class Norm>
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : conv1(register_module("conv1", convolution())),
        conv2(register_module("conv2", convolution())),
        norm1(register_module("norm1", Norm(4))),
        norm2(register_module("norm2", Norm(4))) {}
  static torch::nn::Conv2d convolution() {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1).bias(false));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = torch::relu(norm1->forward(conv1(x)));
    return torch::relu(x + norm2->forward(conv2(y)));
  }
  torch::nn::Conv2d conv1, conv2;
  Norm norm1, norm2;
};

template <class Norm>
Sequential resnet() {
  torch::manual_seed(42);
  return Sequential(torch::nn::Conv2d(1, 4, 3), std::make_shared<BlockImpl<Norm>>(),
                    std::make_shared<BlockImpl<Norm>>(), torch::nn::AdaptiveAvgPool2d(1),
                    torch::nn::Flatten(), Linear(4, 4), torch::nn::LogSoftmax(1));
}

void imagenet(const test::Rank& rank, Group world) {
  OnGroup ranks(world);
  constexpr int kPasses = 2;  // batches_per_allreduce
  const auto options = torch::optim::SGDOptions(0.0125 * kPasses * world.size()).momentum(0.9);
  OneProcess both(rank, resnet<nn::SyncBatchNorm>(), resnet<torch::nn::BatchNorm2d>());
  torch::optim::SGD sgd(both.model->parameters(), options),
      plain(both.whole->parameters(), options);
  DistributedOptimizer optimizer(*both.model, sgd, world, {.backward_passes_per_step = kPasses});
  const int begin = broadcast_object(world, world.rank() == 0 ? Json(1) : Json()).get<int>();
  broadcast_parameters(*both.model, world);
  broadcast_optimizer_state(sgd, world);
  for (int epoch = begin; epoch < 3; ++epoch) {
    optimizer.zero_grad();
    plain.zero_grad();
    for (int pass = 0; pass < kPasses; ++pass) {
      const int64_t first = 100 * epoch + 8 * pass;
      (digits_loss(both.model, first + 4 * world.rank(), 4) / kPasses).backward();
      (digits_loss(both.whole, first, 8) / kPasses).backward();
    }
    optimizer.synchronize();
    torch::nn::utils::clip_grad_norm_(both.model->parameters(), 0.1);
    optimizer.step();
    torch::nn::utils::clip_grad_norm_(both.whole->parameters(), 0.1);
    plain.step();
  }
  both.compare("imagenet");
}

RANK_PROGRAM(loops) {
  Group world = join();
  sparse_rows(rank, world);
  hook(rank, world);
  adasums(rank, world);
  mnist(rank, world);
  imagenet(rank, world);
  weighted_parts(rank, world);
  several_passes(rank, world);
  uneven_ends(rank, world);
  closures(rank, world, ReduceOp::mean);
  closures(rank, world, ReduceOp::sum);
  after_a_mismatch(rank, world);
  parameters_come_and_go(rank, world);
  parameter_replaced(rank, world);
  statistics_of_all(rank, world);
}

TEST(DistributedLoops, AreOneProcessOnTheJoinedBatchAndEqualBits) {
  const auto out = test::run_workers(2, "loops");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  for (const std::string name :
       {"sparse rows", "hook of all elements", "adasum", "mnist", "imagenet", "weights of parts",
        "several passes", "uneven ends, last 0", "closures of means", "closures of sums",
        "after a mismatch", "parameters that come and go", "parameter replaced",
        "batch norm of all"}) {
    const auto lines = test::lines_after(out.log, name + ": ");
    ASSERT_THAT(lines, SizeIs(2)) << name << out.log;
    EXPECT_EQ(lines[0], lines[1]) << name;
    EXPECT_THAT(lines[0], HasSubstr("as one yes, moved yes")) << name;
  }
  EXPECT_THAT(test::lines_after(out.log, "refused: "),
              AllOf(SizeIs(2), Each(HasSubstr("rank 0 calls step(closure), rank 1 step()"))));
  EXPECT_THAT(test::lines_after(out.log, "gradient "), AllOf(SizeIs(2), Each("6")));
  EXPECT_THAT(test::lines_after(out.log, "metric as one: "), AllOf(SizeIs(2), Each("true")));
}

// ---- groups, objects, buffers ----

// 4, no and 2 batches, of other sizes; rank 1, whose order of gradients the others do not know, has
// none in the first step.
void ends_of_three(const test::Rank& rank, Group world) {
  OneProcess both(rank);
  torch::optim::SGD sgd(both.model->parameters(), momentum()),
      plain(both.whole->parameters(), momentum());
  DistributedOptimizer optimizer(*both.model, sgd, world);
  const int64_t begins[] = {0, 3, 4, 9};
  const auto step = [&](int64_t number) {
    const int64_t begin = begins[world.rank()], end = begins[world.rank() + 1];
    optimizer.zero_grad();
    optimizer.set_weight(static_cast<double>(end - begin));
    loss_of(both.model, 20 * number + begin, end - begin).backward();
    optimizer.step();
  };
  const int own = world.rank() == 0 ? 4 : world.rank() == 1 ? 0 : 2;
  for (int number = 0; number < own; ++number) step(number);
  optimizer.join();
  step(4);
  for (int number = 0; number < 5; ++number) {
    plain.zero_grad();
    const int parts[] = {3, number == 4 ? 1 : 0, number < 2 || number == 4 ? 5 : 0};
    const double all = parts[0] + parts[1] + parts[2];
    for (int part = 0; part < 3; ++part)
      if (parts[part] > 0)
        (loss_of(both.whole, 20 * number + begins[part], parts[part]) * (parts[part] / all))
            .backward();
    plain.step();
  }
  both.compare("ends of three");
}

RANK_PROGRAM(some_ranks) {
  Group world = join();
  ends_of_three(rank, world);
  try {
    Sequential model = net();
    torch::optim::SGD three(model->parameters(), momentum());
    DistributedOptimizer(*model, three, world, {.adasum = true});
  } catch (const UsageError& error) {
    rank.mark(fmt::format("adasum of three: {}", error.what()));
  }
  const Json settings = broadcast_object(world, Json{{"rate", 0.1 * (1 + world.rank())}}, 1);
  const auto all = all_gather_bytes(world, std::string(static_cast<size_t>(world.rank()), 'x'));
  rank.mark(fmt::format("object {} {} {} {}", settings.dump(), all[0], all[1], all[2]));
  try {
    all_gather_object(world, world.rank() == 2 ? Json("\xff") : Json(1));
  } catch (const std::exception& error) {
    rank.mark(fmt::format("no object: {}", error.what()));
  }
  torch::nn::BatchNorm1d norm(2);
  norm->running_mean.fill_(world.rank());
  broadcast_buffers(*norm, world, 2);
  rank.mark(fmt::format("buffer {}, weight {}", norm->running_mean[0].item<float>(),
                        norm->weight[0].item<float>()));
  // Ranks 0 and 2 train one model, rank 1 another.
  Group some = *world.split(world.rank() % 2);
  torch::nn::Linear model(1, 1);
  torch::nn::init::zeros_(model->weight);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1));
  DistributedOptimizer optimizer(*model, sgd, some);
  model(torch::full({1, 1}, std::pow(1.0 + world.rank(), 2))).sum().backward();
  optimizer.step();
  rank.mark(fmt::format("moved {}", model->weight[0][0].item<float>()));
}

TEST(DistributedLoops, GroupsOfSomeRanksAndWhatTheyTellEachOther) {
  const auto out = test::run_workers(3, "some_ranks");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto ends = test::lines_after(out.log, "ends of three: ");
  EXPECT_THAT(ends, AllOf(SizeIs(3), Each(HasSubstr("as one yes, moved yes"))));
  EXPECT_THAT(ends, Each(ends.at(0)));
  EXPECT_THAT(test::lines_after(out.log, "adasum of three: "),
              AllOf(SizeIs(3), Each(HasSubstr("adasum over 3 ranks, expected a power of two"))));
  EXPECT_THAT(test::lines_after(out.log, "object: "),
              AllOf(SizeIs(3), Contains(HasSubstr("rank 2 could not write")).Times(2)));
  EXPECT_THAT(test::lines_after(out.log, "] object "),
              AllOf(SizeIs(3), Each("{\"rate\":0.2}  x xx")));
  EXPECT_THAT(test::lines_after(out.log, "buffer "), AllOf(SizeIs(3), Each("2, weight 1")));
  EXPECT_THAT(test::lines_after(out.log, "] moved "), UnorderedElementsAre("-5", "-4", "-5"));
}

TEST(OnGroup, IsTheReplicaOfItsThreadUntilItEnds) {
  {
    OnGroup ranks{Group()};
    EXPECT_EQ(ReplicaContext::current(), &ranks.replica());
    EXPECT_EQ(ranks.replica().num_replicas_in_sync(), 1);
    EXPECT_THAT(refusal_of<UsageError>([] { OnGroup again{Group()}; }),
                HasSubstr("this thread is a replica already"));
    torch::manual_seed(3);
    const auto drawn = torch::randn({4});
    torch::manual_seed(3);
    EXPECT_TRUE(torch::equal(torch::randn({4}), drawn));
  }
  EXPECT_EQ(ReplicaContext::current(), nullptr);
}

}  // namespace
}  // namespace tutti
