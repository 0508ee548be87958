/// nn::Graph: a model as data, written the functional way.
///
///   auto input = nn::input({1, 28, 28});
///   auto x = nn::conv2d(16, 3, {.padding = 1})(input);
///   x = nn::max_pool2d(2)(nn::relu()(x));
///   x = nn::linear(10)(nn::flatten()(x));
///   auto graph = nn::Graph(input, x);
///
/// One description gives the torch module (graph_module.h), the summary, and what others read from
/// nodes(). Wrong shapes are found while the graph is written, not in the first step.
/// Thread rule: all types here are immutable handles; copies share and may go to any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/ops.h"

namespace tutti::nn {

namespace detail {
struct Record;
struct Applied;
}  // namespace detail

/// The output of a layer, for one sample of any batch.
class Value {
 public:
  const Shape& shape() const noexcept;

 private:
  friend class Layer;
  friend class Graph;
  friend Value input(Shape shape, DType dtype);
  friend Value add(const Value& a, const Value& b);
  friend Value concat(const std::vector<Value>& values);
  friend struct detail::Applied;
  explicit Value(std::shared_ptr<const detail::Record> record) : record_(std::move(record)) {}
  std::shared_ptr<const detail::Record> record_;
};

/// A layer that waits for its input. Applied twice, it uses the same parameters twice.
class Layer {
 public:
  explicit Layer(Op op);

  /// The name its parameters get: "layer1.0.conv1" stands for nested modules. Without one, a Graph
  /// counts: "conv2d_1", "conv2d_2", ...
  Layer named(std::string name) const;

  /// Throws UsageError when `x` does not fit, with the layer, what it got and what it expects.
  Value operator()(const Value& x) const;
  /// For a layer that takes two: lstm() and gru() with the steps that there are.
  Value operator()(const Value& x, const Value& second) const;

 private:
  friend Layer tied_linear(const Layer& embedding);
  struct State;
  explicit Layer(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

struct Conv2dOptions {
  int64_t stride = 1;
  Size2d padding = 0;
  int64_t groups = 1;
  bool bias = true;
};
struct LinearOptions {
  bool bias = true;
  double initial_deviation = 0;  ///< as op::Linear has it
};
struct EmbeddingOptions {
  double initial_deviation = 1;
};
struct PoolOptions {
  int64_t stride = 0;  ///< 0: the kernel's size
  int64_t padding = 0;
};
struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;
  bool synchronized = false;  ///< statistics of the global batch: nn::SyncBatchNorm
};

struct LayerNormOptions {
  double epsilon = 1e-5;
};

struct AttentionOptions {
  bool causal = false;  ///< places see none that come after them
};
struct GeluOptions {
  bool by_tanh = false;  ///< by GPT-2's formula
};

/// Where samples of this shape (without the batch dimension) enter; int64 for an embedding.
Value input(Shape shape, DType dtype = DType::float32);
Layer conv2d(int64_t out_channels, Size2d kernel, Conv2dOptions options = {});
Layer linear(int64_t units, LinearOptions options = {});
Layer embedding(int64_t vocabulary, int64_t features, EmbeddingOptions options = {});
/// Logits by the weight of `embedding`, a layer of embedding(): one parameter, trained by both.
/// UsageError for another layer.
Layer tied_linear(const Layer& embedding);
Layer max_pool2d(int64_t kernel, PoolOptions options = {});
Layer avg_pool2d(int64_t kernel, PoolOptions options = {});
Layer adaptive_avg_pool2d(Size2d size);
Layer global_avg_pool2d();
Layer upsample2d(int64_t times);
Layer batch_norm2d(BatchNormOptions options = {});
Layer layer_norm(LayerNormOptions options = {});
Layer self_attention(int64_t heads);
Layer attention(int64_t heads, AttentionOptions options = {});
Layer prepend_token();
Layer add_position();
Layer to_sequence();
Layer first_of_sequence();
Layer relu();
Layer gelu(GeluOptions options = {});
Layer tanh();
Layer softmax();
Layer flatten();
Layer dropout(double probability);
/// One channel to `times` channels; an input that has them already stays as it is.
Layer repeat_channels(int64_t times);
/// Sum of two values of one shape: where branches meet.
Value add(const Value& a, const Value& b);
/// Values joined along their first dimension: the channels of images, the places of sequences.
Value concat(const std::vector<Value>& values);

/// One layer applied to its inputs.
struct Node {
  Op op;
  std::string name;                   ///< unique; equal names mean one layer applied twice
  std::vector<int> inputs;            ///< places in Graph::nodes(), each before this one
  Shape shape;                        ///< of one sample
  std::vector<Parameter> parameters;  ///< what the layer owns; names within the layer
};

/// What it computes, with all that its layer was told: equal nodes have equal words.
std::string words_of(const Node& node);

/// An input or output of a graph, by the name that data, losses and metrics have for it.
struct NamedValue {
  std::string name;
  Value value;
};
struct Port {
  std::string name;
  int node = 0;  ///< place in Graph::nodes()
};

class Graph {
 public:
  /// Everything between `input` and `output`, which are named so. Throws UsageError when the output
  /// does not come from this input alone, or when two layers have one name.
  Graph(const Value& input, const Value& output);

  /// Everything between several inputs and outputs; an input's node has its name. Throws UsageError
  /// as above, when a name is empty or there twice, and when no output comes from an input.
  Graph(const std::vector<NamedValue>& inputs, const std::vector<NamedValue>& outputs);

  /// In the order in which the layers were applied, which is the order of execution.
  const std::vector<Node>& nodes() const noexcept { return parts_->nodes; }
  /// At least one each, in the order in which they were given.
  const std::vector<Port>& inputs() const noexcept { return parts_->inputs; }
  const std::vector<Port>& outputs() const noexcept { return parts_->outputs; }
  const Shape& shape_of(const Port& port) const { return nodes()[size_t(port.node)].shape; }
  /// Of the first input, and the first output.
  const Shape& input_shape() const { return shape_of(inputs().front()); }
  const Shape& output_shape() const { return shape_of(outputs().front()); }

  /// Elements of all parameters, frozen ones too, shared ones once; buffers are none.
  int64_t num_parameters() const;
  /// Of those, elements of the frozen ones.
  int64_t num_frozen() const;

  /// A table: layer, output shape, parameters, which are frozen; totals below.
  std::string summary() const;

 private:
  friend Graph with_synchronized_batch_norm(const Graph& graph);
  friend Graph with_frozen(const Graph& graph, const std::vector<std::string>& patterns);
  Graph() = default;
  struct Parts {
    std::vector<Node> nodes;
    std::vector<Port> inputs;
    std::vector<Port> outputs;
  };
  std::shared_ptr<const Parts> parts_;
};

/// The same graph, every batch norm of which takes its statistics from all replicas; names and
/// initial values stay. PyTorch's convert_sync_batchnorm, for models written as graphs, such as the
/// zoo's: in a C++ module layers are members of the user's types, and cannot be exchanged.
Graph with_synchronized_batch_norm(const Graph& graph);

/// The same graph, some parameters of which are not trained, as layer.trainable = False in Keras:
/// those whose whole name fits one of `patterns` (* any characters, ? any one), and those in a
/// layer, or group of layers, whose name does: "layer1" is "layer1.*". They have no gradient, no
/// part in sums over replicas and no state of an optimizer; checkpoints and saved weights have
/// them. A batch norm that is frozen whole infers. UsageError for a pattern that fits none.
Graph with_frozen(const Graph& graph, const std::vector<std::string>& patterns);

/// The name of a layer's parameter in the whole graph: "conv1.weight".
std::string full_name(const Node& node, const Parameter& parameter);

}  // namespace tutti::nn
