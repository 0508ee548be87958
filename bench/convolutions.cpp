// The convolutions of a network, forward and backward, by LibTorch with weights in torch's order
// and by the library's own way to call them, in turn (docs/design/layouts.md).
//
//   bench_convolutions [MODEL [SIZE [BATCH [ROUNDS]]]]
//
// MODEL (resnet18) of the zoo on SIZE x SIZE photos (64); BATCH (32) is one replica's; one thread.
// Each round of a layer times forward, the gradient of its input, and that of its weight in
// torch's order, as an update reads it. Prints, for each kind of layer, how often it is there and
// both medians of ROUNDS (9) in us, and a line of JSON with the sums over the network in ms.
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/models/models.h"
#include "tutti/nn/detail/convolution.h"
#include "tutti/nn/detail/graph_step.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;
using nn::op::Conv2d;

struct KindOfLayer {
  Conv2d conv;
  int64_t height, width;
  bool first;  ///< reads the photos, whose gradient nobody wants
  int64_t times = 0;
};

std::vector<KindOfLayer> kinds_of(const nn::Graph& graph) {
  std::map<std::vector<int64_t>, KindOfLayer> kinds;
  for (const nn::Node& node : graph.nodes()) {
    const auto* const conv = std::get_if<Conv2d>(&node.op);
    if (conv == nullptr) continue;
    const nn::Shape& in = graph.nodes()[static_cast<size_t>(node.inputs[0])].shape;
    const bool first = node.inputs[0] == graph.inputs()[0].node;
    auto& kind = kinds
                     .try_emplace({conv->in_channels, conv->out_channels, conv->kernel.height,
                                   conv->kernel.width, conv->stride, conv->groups, in[1], in[2]},
                                  KindOfLayer{*conv, in[1], in[2], first})
                     .first->second;
    ++kind.times;
  }
  std::vector<KindOfLayer> all;
  for (const auto& [key, kind] : kinds) all.push_back(kind);
  return all;
}

struct LayerTensors {
  at::Tensor x, weight, bias, gradient;
};

double us_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

double by_libtorch(const KindOfLayer& kind, const LayerTensors& of) {
  const Conv2d& conv = kind.conv;
  const std::vector<int64_t> stride(2, conv.stride);
  const std::vector<int64_t> padding{conv.padding.height, conv.padding.width};
  return us_of([&] {
    at::convolution(of.x, of.weight, of.bias, stride, padding, {1, 1}, false, {0, 0}, conv.groups);
    const auto gradients =
        at::convolution_backward(of.gradient, of.x, of.weight, {}, stride, padding, {1, 1}, false,
                                 {0, 0}, conv.groups, {!kind.first, true, false});
    std::get<1>(gradients).contiguous();
  });
}

double by_ours(const KindOfLayer& kind, const LayerTensors& of) {
  return us_of([&] {
    nn::detail::convolution_forward(kind.conv, of.x, of.weight, of.bias);
    nn::detail::convolution_backward(kind.conv, of.gradient, of.x, of.weight,
                                     {!kind.first, true, false});
  });
}

bench::InTurn measured(const KindOfLayer& kind, int64_t batch, int64_t rounds) {
  const Conv2d& conv = kind.conv;
  LayerTensors of;
  of.x =
      nn::detail::channels_last(torch::randn({batch, conv.in_channels, kind.height, kind.width}));
  of.weight = torch::randn(
      {conv.out_channels, conv.in_channels / conv.groups, conv.kernel.height, conv.kernel.width});
  if (conv.bias) of.bias = torch::randn({conv.out_channels});
  of.gradient = torch::randn_like(nn::detail::convolution_forward(conv, of.x, of.weight, of.bias));
  by_libtorch(kind, of);
  by_ours(kind, of);
  return bench::in_turn(
      rounds, [&] { return by_ours(kind, of); }, [&] { return by_libtorch(kind, of); });
}

const char* word_of(nn::detail::ConvolutionWay way) {
  switch (way) {
    case nn::detail::ConvolutionWay::dense: return "  dense";
    case nn::detail::ConvolutionWay::by_taps: return "  by taps";
    case nn::detail::ConvolutionWay::libtorch: break;
  }
  return "";
}

void compare(const std::string& model, int64_t size, int64_t batch, int64_t rounds) {
  const nn::Graph graph = models::model_by_name(model, {.classes = 10, .input = {3, size, size}});
  double ours = 0, libtorchs = 0;
  fmt::print("{:>5} {:>5} {:>7} {:>6} {:>9} {:>5} {:>10} {:>10} {:>6}\n", "in", "out", "kernel",
             "stride", "image", "times", "LibTorch", "ours", "ratio");
  for (const KindOfLayer& kind : kinds_of(graph)) {
    const auto of = measured(kind, batch, rounds);
    const auto times = static_cast<double>(kind.times);
    ours += times * of.one / 1e3;
    libtorchs += times * of.other / 1e3;
    const Conv2d& conv = kind.conv;
    fmt::print("{:>5} {:>5} {:>7} {:>6} {:>9} {:>5} {:>10.0f} {:>10.0f} {:>6.2f}{}\n",
               conv.in_channels, conv.out_channels,
               fmt::format("{}x{}", conv.kernel.height, conv.kernel.width), conv.stride,
               fmt::format("{}x{}", kind.height, kind.width), kind.times, of.other, of.one,
               of.ratio, word_of(nn::detail::way_of(conv, kind.height, kind.width)));
  }
  const nlohmann::json line = {{"model", model},           {"size", size},
                               {"batch", batch},           {"rounds", rounds},
                               {"libtorch_ms", libtorchs}, {"ours_ms", ours}};
  fmt::print("{}\n", line.dump());
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
  const torch::NoGradGuard no_graph;
  compare(argc > 1 ? argv[1] : "resnet18", bench::number_at(argc, argv, 2, 64),
          bench::number_at(argc, argv, 3, 32), bench::number_at(argc, argv, 4, 9));
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_convolutions: {}\n", error.what());
  return 2;
}
