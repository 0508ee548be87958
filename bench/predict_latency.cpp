// What an answer costs beside the same network by LibTorch's operators alone, in inference mode.
//
//   bench_predict_latency [--models mlp,cnn,gpt,resnet18] [--rows 1,32] [--calls 400] [--threads T]
//                         [--dense-kernel blas|onednn]
//   bench_predict_latency --callers 8 [--models cnn] [--calls 400] [--max-batch 32] [--max-wait US]
//
// The first calls in turn, 20 times each, on the same rows, from one thread:
//
//   bare        LibTorch's operators (bare_networks.h), c10::InferenceMode        the peer
//   module      the GraphModule's forward, in inference mode
//   predictor   Predictor::predict
//   model       Model::predict, strategy one_device
//
// and prints p50 and p99 of each in microseconds, and p50 over the bare one's. Before that answers
// are compared. The second has so many threads call a Predictor with a row each, apart and joined
// (Predictor::batched), and prints answers a second and the latency of a call. Each prints a line
// of JSON a model.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tutti/models/gpt.h"
#include "tutti/models/models.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/nn/graph_module.h"
#include "tutti/train/model/model.h"
#include "tutti/train/model/predictor.h"

#include "bench/bare_networks.h"

namespace {

using namespace tutti;
using Way = std::function<at::Tensor(const at::Tensor&)>;

struct Flags {
  std::vector<std::string> models{"mlp", "cnn", "gpt", "resnet18"};
  std::vector<int64_t> rows{1, 32};
  int64_t calls = 400, max_batch = 32, max_wait_us = 1'000;
  int threads = 0, callers = 0;
  std::string dense_kernel;
};

// Calls of one way after the other, so that each finds its weights where the last has left them.
constexpr int64_t kBlock = 20;
constexpr models::GptOptions kGpt{.vocabulary = 256, .context = 64, .layers = 4, .heads = 4};

nn::Graph graph_of(const std::string& model) {
  if (model == "gpt") return models::gpt(kGpt);
  if (model == "resnet18") return models::resnet18({.classes = 10, .input = {3, 64, 64}});
  return models::model_by_name(model);
}

at::Tensor rows_for(const std::string& model, int64_t rows) {
  if (model == "gpt") return torch::randint(256, {rows, kGpt.context}, at::kLong);
  if (model == "resnet18") return torch::rand({rows, 3, 64, 64});
  return torch::rand({rows, 1, 28, 28});
}

bench::BareNetwork bare_of(const std::string& model, const bench::Weights& weights) {
  if (model == "mlp") return bench::bare_mlp(weights);
  if (model == "cnn") return bench::bare_cnn(weights);
  if (model == "gpt") return bench::BareGpt(weights, kGpt.layers, kGpt.heads);
  return bench::BareResnet18(weights);
}

struct Latency {
  double p50 = 0, p99 = 0;
};
Latency latency_of(std::vector<double> us) {
  std::ranges::sort(us);
  return {us[us.size() / 2], us[us.size() * 99 / 100]};
}

double us_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// A network of one set of weights: on a disk for Predictor, in a Model, and bare.
struct Network {
  explicit Network(const std::string& name)
      : model(Strategy({.kind = "one_device"}), [&] { return graph_of(name); }),
        module(std::dynamic_pointer_cast<nn::GraphModule>(model.modules().module(0))) {
    const auto file = std::filesystem::temp_directory_path() /
                      fmt::format("bench_predict_{}_{}.safetensors", name, ::getpid());
    model.save(file);
    predictor.emplace(Predictor::load(file));
    std::filesystem::remove(file);
    std::filesystem::remove(std::filesystem::path(file).replace_extension(".json"));
    bench::Weights weights;
    for (const auto& one : module->named_parameters()) weights[one.key()] = one.value().detach();
    for (const auto& one : module->named_buffers()) weights[one.key()] = one.value();
    bare = bare_of(name, weights);
  }

  Model model;
  std::shared_ptr<nn::GraphModule> module;
  std::optional<Predictor> predictor;
  bench::BareNetwork bare;
};

void measure(const std::string& name, Network& network, int64_t rows, int64_t calls) {
  const std::vector<std::pair<std::string, Way>> ways{
      {"bare",
       [&](const at::Tensor& x) {
         const c10::InferenceMode inference;
         return network.bare(x);
       }},
      {"module",
       [&](const at::Tensor& x) {
         const c10::InferenceMode inference;
         return network.module->forward(x);
       }},
      {"predictor", [&](const at::Tensor& x) { return network.predictor->predict(x); }},
      {"model", [&](const at::Tensor& x) { return network.model.predict(x); }}};
  const at::Tensor x = rows_for(name, rows);
  network.module->eval();
  const at::Tensor expected = network.bare(x).detach();
  std::vector<std::vector<double>> us(ways.size());
  for (const auto& [way, answer] : ways)
    if (!torch::allclose(answer(x), expected, 1e-3, 1e-4))
      throw Error(fmt::format("{}: {} gives other answers than bare operators", name, way));
  for (int64_t begin = -kBlock; begin < calls; begin += kBlock)
    for (size_t way = 0; way < ways.size(); ++way)
      for (int64_t call = 0; call < kBlock; ++call) {
        at::Tensor y;
        const double taken = us_of([&] { y = ways[way].second(x); });
        if (begin >= 0) us[way].push_back(taken);
      }
  nlohmann::json line{{"model", name}, {"rows", rows}, {"calls", calls}};
  fmt::print("{:>9} {:>5}", name, rows);
  const double bare = latency_of(us[0]).p50;
  for (size_t way = 0; way < ways.size(); ++way) {
    const Latency of = latency_of(us[way]);
    line[ways[way].first] = {{"p50_us", of.p50}, {"p99_us", of.p99}, {"ratio", of.p50 / bare}};
    fmt::print("   {:>9} {:8.1f} {:8.1f} {:5.2f}", ways[way].first, of.p50, of.p99, of.p50 / bare);
  }
  fmt::print("\n{}\n", line.dump());
}

void serve(const std::string& name, const Flags& flags, const Predictor& predictor,
           const std::string& how) {
  std::vector<std::vector<double>> us(static_cast<size_t>(flags.callers));
  const double all = us_of([&] {
    std::vector<std::jthread> callers;
    for (auto& own : us)
      callers.emplace_back([&] {
        const at::Tensor x = rows_for(name, 1);
        for (int64_t call = 0; call < flags.calls; ++call)
          own.push_back(us_of([&] { predictor.predict(x); }));
      });
  });
  std::vector<double> each;
  for (const auto& own : us) each.insert(each.end(), own.begin(), own.end());
  const Latency of = latency_of(each);
  const double a_second = static_cast<double>(each.size()) / all * 1e6;
  fmt::print("{:>9} {:>7} {:10.0f} answers/s   p50 {:8.0f} us   p99 {:8.0f} us\n", name, how,
             a_second, of.p50, of.p99);
  const nlohmann::json line{{"model", name},
                            {"calls", how},
                            {"callers", flags.callers},
                            {"answers_a_second", a_second},
                            {"p50_us", of.p50},
                            {"p99_us", of.p99}};
  fmt::print("{}\n", line.dump());
}

void run(const Flags& flags) {
  torch::manual_seed(1);
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  if (!flags.dense_kernel.empty())
    nn::use_dense_kernel(nn::dense_kernel_by_name(flags.dense_kernel));
  for (const std::string& name : flags.models) {
    Network network(name);
    if (flags.callers == 0) {
      for (const int64_t rows : flags.rows) measure(name, network, rows, flags.calls);
      continue;
    }
    serve(name, flags, *network.predictor, "apart");
    const Predictor joined = network.predictor->batched(
        {.max_batch = flags.max_batch, .max_wait = std::chrono::microseconds(flags.max_wait_us)});
    serve(name, flags, joined, "joined");
    const CallCounts counts = joined.joined();
    fmt::print("{:>9} rows a pass: {:.1f}\n", name,
               static_cast<double>(counts.units) / static_cast<double>(counts.passes));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("answers of networks beside bare LibTorch");
  Flags flags;
  app.add_option("--models", flags.models)->delimiter(',');
  app.add_option("--rows", flags.rows)->delimiter(',');
  app.add_option("--calls", flags.calls);
  app.add_option("--threads", flags.threads);
  app.add_option("--dense-kernel", flags.dense_kernel, "blas, onednn; else the rule's");
  app.add_option("--callers", flags.callers);
  app.add_option("--max-batch", flags.max_batch);
  app.add_option("--max-wait", flags.max_wait_us);
  CLI11_PARSE(app, argc, argv);
  try {
    run(flags);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_predict_latency: {}\n", plain_words(error.what()));
    return 2;
  }
}
