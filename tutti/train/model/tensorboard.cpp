#include "tutti/train/model/tensorboard.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/nn/graph_module.h"
#include "tutti/sync/before_use.h"
#include "tutti/sync/tensors.h"

namespace tutti {

namespace {

constexpr int64_t kMostPixels = 512;

/// Why the first module has not the weights of the training, or nothing.
const char* why_no_weights(Model& model) {
  const Strategy strategy = model.strategy();
  if (strategy.world().plugin != nullptr) return "under strategy tpu weights are the plugin's";
  if (model.optimizer().updater().parts().client != nullptr)
    return "parameter servers have the weights, and each worker sees them late";
  if (model.modules().whole() != nullptr) return "on a mesh no rank has all weights";
  if (strategy.options().shard == "parameters")
    return "with shard \"parameters\" no rank has all weights between two steps";
  if (model.optimizer().updater().averaged() != nullptr)
    return "with local updates each replica has weights of its own";
  return nullptr;
}

/// "layer1.conv1" as a group and a box in it.
std::string box_name(std::string name) {
  std::ranges::replace(name, '.', '/');
  return name;
}

/// One a node, all unlike: one layer applied twice is two boxes.
std::vector<std::string> box_names(const nn::Graph& graph) {
  std::set<std::string> taken;
  for (const nn::Node& node : graph.nodes()) taken.insert(box_name(node.name));
  std::set<std::string> seen;
  std::vector<std::string> names;
  for (const nn::Node& node : graph.nodes()) {
    const std::string own = box_name(node.name);
    std::string name = own;
    if (!seen.insert(own).second)
      for (int again = 1; !taken.insert(name).second; ++again)
        name = fmt::format("{}_{}", own, again);
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<EventWriter::GraphNode> boxes_of(const nn::Graph& graph) {
  const std::vector<std::string> names = box_names(graph);
  std::vector<EventWriter::GraphNode> boxes;
  for (const nn::Node& node : graph.nodes()) {
    EventWriter::GraphNode box{.name = names[boxes.size()],
                               .operation = std::string(nn::kind_of(node.op)),
                               .inputs = {},
                               .shape = {-1}};
    for (const int input : node.inputs) box.inputs.push_back(names[static_cast<size_t>(input)]);
    box.shape.insert(box.shape.end(), node.shape.begin(), node.shape.end());
    const std::string words = words_of(node);  // "name = kind(...) of [...]"
    box.words["computes"] = words.substr(words.find(" = ") + 3);
    boxes.push_back(std::move(box));
  }
  return boxes;
}

/// Rows and columns of pixels: of a convolution's kernels, tiles with a pixel between.
at::Tensor as_rows(const at::Tensor& weights) {
  if (weights.dim() < 2) return weights.reshape({1, -1});
  if (weights.dim() == 2) return weights;
  const at::Tensor kernels = weights.dim() == 3 ? weights.unsqueeze(2) : weights.flatten(3);
  const int64_t high = kernels.size(2), wide = kernels.size(3);
  const int64_t most_high = std::min(kernels.size(0), kMostPixels / (high + 1) + 1);
  const int64_t most_wide = std::min(kernels.size(1), kMostPixels / (wide + 1) + 1);
  const at::Tensor some = kernels.slice(0, 0, most_high).slice(1, 0, most_wide);
  const at::Tensor tiles = at::constant_pad_nd(some, {0, 1, 0, 1}, some.min().item());
  return tiles.permute({0, 2, 1, 3}).reshape({most_high * (high + 1), most_wide * (wide + 1)});
}

void add_picture(EventWriter& events, const std::string& tag, int64_t epoch,
                 const at::Tensor& weights) {
  if (weights.numel() == 0) return;
  const at::Tensor finite = at::nan_to_num(weights, 0, 0, 0);
  const at::Tensor rows =
      as_rows(finite).slice(0, 0, kMostPixels).slice(1, 0, kMostPixels).contiguous();
  const double least = finite.min().item<double>(), greatest = finite.max().item<double>();
  std::vector<uint8_t> pixels(static_cast<size_t>(rows.numel()), 128);
  for (size_t i = 0; i < pixels.size() && greatest > least; ++i)
    pixels[i] = static_cast<uint8_t>(
        std::lround(255 * (rows.const_data_ptr<float>()[i] - least) / (greatest - least)));
  events.image(tag, epoch,
               {.height = static_cast<int>(rows.size(0)),
                .width = static_cast<int>(rows.size(1)),
                .channels = 1,
                .pixels = pixels});
}

void add_weights(EventWriter& events, int64_t epoch, const torch::nn::Module& module,
                 bool pictures) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    require_ready(parameter);
    const at::Tensor values = parameter.detach().to(at::kCPU, at::kFloat).contiguous();
    events.histogram(
        name + "/histogram", epoch,
        std::span(values.const_data_ptr<float>(), static_cast<size_t>(values.numel())));
    if (pictures) add_picture(events, name + "/image", epoch, values);
  }
}

}  // namespace

std::shared_ptr<Callback> callbacks::tensorboard(const Model& model, TensorBoardOptions options) {
  if (options.write_images && options.histogram_freq == 0)
    throw UsageError(
        "callback tensorboard: write_images is of weights, beside their histograms; set "
        "histogram_freq too");
  const auto begin = [model = Model(model), options](EventWriter& events) mutable {
    if (const char* const why = options.histogram_freq > 0 ? why_no_weights(model) : nullptr)
      throw UsageError(fmt::format(
          "tensorboard: histogram_freq: {}; leave it out, or train under mirrored, multi_worker, "
          "central_storage or one_device",
          why));
    if (!options.write_graph) return;
    if (const auto* const graph = model.modules().module(0)->as<nn::GraphModule>())
      events.graph(boxes_of(graph->graph()));
  };
  const auto after_epoch = [model, options](EventWriter& events, int64_t epoch) {
    if (options.histogram_freq > 0 && (epoch + 1) % options.histogram_freq == 0)
      add_weights(events, epoch, *model.modules().module(0), options.write_images);
  };
  return detail::tensorboard_of(std::move(options), {.begin = begin, .after_epoch = after_epoch});
}

}  // namespace tutti
