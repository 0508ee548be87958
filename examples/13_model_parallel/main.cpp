// A model on several devices, four ways, each with the weights of one device: layers on two devices
// by hand, stages of a pipeline, layers in blocks, and all of it with data parallel.
#include <tutti/nn/dense.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kFeatures = 16, kClasses = 4, kBatch = 16, kSteps = 10;
constexpr double kRate = 0.1;

// Points of four clouds.
std::pair<at::Tensor, at::Tensor> samples() {
  torch::manual_seed(1);
  auto y = torch::randint(0, kClasses, {kBatch * kSteps}, at::kLong);
  auto x = torch::randn({kBatch * kSteps, kFeatures}) + y.unsqueeze(1);
  return {x, y};
}

tutti::nn::Graph network() {
  auto x = tutti::nn::input({kFeatures});
  auto up = tutti::nn::relu()(tutti::nn::linear(32).named("up")(x));
  auto down = tutti::nn::relu()(tutti::nn::linear(kFeatures).named("down")(up));
  return {x, tutti::nn::linear(kClasses).named("head")(down)};
}

tutti::Loss loss() { return tutti::losses::sparse_categorical_crossentropy({.from_logits = true}); }

// "up" on one device, "down" and "head" on the other: a thread each. What goes forward is an
// activation, what comes back its gradient.
std::string by_hand() {
  std::vector<tutti::Group> groups = tutti::join_replicas(2);
  torch::manual_seed(0);
  auto whole = tutti::nn::make_module(network());
  auto parameters = whole->named_parameters();
  const auto dense = [&](const at::Tensor& x, const std::string& layer) {
    return tutti::nn::dense(x, parameters[layer + ".weight"], parameters[layer + ".bias"]);
  };
  const auto update = [&](const std::vector<std::string>& layers) {
    const at::NoGradGuard no_grad;
    for (const std::string& layer : layers)
      for (const char* part : {".weight", ".bias"}) {
        at::Tensor& parameter = parameters[layer + part];
        parameter.sub_(parameter.grad() * kRate);
        parameter.mutable_grad().reset();
      }
  };
  const auto [inputs, targets] = samples();
  const tutti::Millis limit{30'000};
  const auto first = [&] {
    for (int64_t step = 0; step < kSteps; ++step) {
      auto up = torch::relu(dense(inputs.narrow(0, step * kBatch, kBatch), "up"));
      auto sent = up.detach();
      groups[0].send(tutti::span_of(sent), 1).wait(limit);
      auto gradient = torch::empty_like(sent);
      groups[0].recv(tutti::span_of(gradient), 1).wait(limit);
      up.backward(gradient);
      update({"up"});
    }
  };
  const auto second = [&] {
    for (int64_t step = 0; step < kSteps; ++step) {
      auto up = torch::empty({kBatch, 32});
      groups[1].recv(tutti::span_of(up), 0).wait(limit);
      up.requires_grad_();
      auto logits = dense(torch::relu(dense(up, "down")), "head");
      double sum = 0;
      loss()
          .kernel()
          .scaled_sum(logits, targets.narrow(0, step * kBatch, kBatch), 1.0 / kBatch, sum)
          .backward();
      auto gradient = up.grad().contiguous();
      groups[1].send(tutti::span_of(gradient), 0).wait(limit);
      update({"down", "head"});
    }
  };
  std::thread other(second);
  first();
  other.join();
  return tutti::weights_sha256(tutti::state_of(*whole));
}

struct Layout {
  const char* strategy;
  std::string mesh;  // axes and their sizes: who of the ranks has what
  int microbatches;  // that a replica's part of a batch comes in
  int blocks;        // that "up" and "down" are cut into, whoever has them
};

// compile() and fit() as on one device.
std::string by_mesh(const Layout& layout) {
  tutti::Strategy strategy({.kind = layout.strategy,
                            .threads_per_replica = 1,
                            .mesh = layout.mesh,
                            .tensor_blocks = layout.blocks});
  namespace par = tutti::parallel;
  tutti::Model model(strategy, network,
                     {.plan = {{"up", par::columns()}, {"down", par::rows()}},
                      .cut = par::before({"head"}),
                      .schedule = par::one_f_one_b()});
  model.compile({.optimizer = tutti::optim::sgd({.learning_rate = kRate}), .loss = loss()});
  const auto [x, y] = samples();
  model.fit(tutti::data::from_tensors({x, y}).batch(kBatch),
            {.verbose = 0, .microbatches = layout.microbatches});
  return model.weights_sha256();
}

bool all_equal = true;

void show(const std::string& layout, const std::string& weights, const std::string& expected) {
  all_equal = all_equal && weights == expected;
  std::printf("%-46s %.16s  %s\n", layout.c_str(), weights.c_str(),
              weights == expected ? "equal" : "DIFFERENT");
}

}  // namespace

int main() {
  const std::string whole = by_mesh({"one_device", "data=1", 1, 1});
  show("one device", whole, whole);
  show("layers on two devices, by hand", by_hand(), whole);

  const std::string parts = by_mesh({"one_device", "data=4", 1, 1});
  show("one device, batches in 4 parts", parts, parts);
  show("stage=2, 4 microbatches", by_mesh({"mirrored", "stage=2", 4, 1}), parts);

  const std::string blocks = by_mesh({"one_device", "data=4", 1, 2});
  show("one device, 4 parts, layers in 2 blocks", blocks, blocks);
  show("tensor=2, 4 microbatches", by_mesh({"mirrored", "tensor=2", 4, 2}), blocks);
  show("data=2,stage=2,tensor=2, 2 microbatches",
       by_mesh({"mirrored", "data=2,stage=2,tensor=2", 2, 2}), blocks);
  return all_equal ? 0 : 1;
}
