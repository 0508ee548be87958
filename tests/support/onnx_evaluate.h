/// What a file of ONNX computes, by LibTorch: a slow reader of the operators that tutti writes,
/// each as https://onnx.ai/onnx/operators says it.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <protozero/pbf_reader.hpp>

namespace tutti::test {

struct OnnxNode {
  std::string op, name;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, int64_t> number;
  std::map<std::string, float> real;
  std::map<std::string, std::string> text;
  std::map<std::string, std::vector<int64_t>> numbers;

  int64_t whole(const std::string& key, int64_t otherwise) const {
    const auto found = number.find(key);
    return found == number.end() ? otherwise : found->second;
  }
};

struct OnnxPort {
  std::string name;
  int64_t type = 0;
  std::vector<std::string> shape;
};

struct OnnxFile {
  int64_t ir_version = 0, opset = 0;
  std::string producer, graph_name;
  std::vector<OnnxNode> nodes;
  std::map<std::string, at::Tensor> weights;
  std::map<std::string, std::map<std::string, std::string>> outside;  ///< of weights elsewhere
  std::vector<OnnxPort> inputs, outputs;
  std::map<std::string, std::string> metadata;
};

inline at::ScalarType onnx_scalar(int64_t type) {
  switch (type) {
    case 1: return at::kFloat;
    case 2: return at::kByte;
    case 6: return at::kInt;
    case 7: return at::kLong;
    case 11: return at::kDouble;
    default: throw std::runtime_error("ONNX type " + std::to_string(type));
  }
}

namespace onnx_reading {

using protozero::pbf_reader;

inline std::pair<std::string, std::string> pair_of(pbf_reader pair) {
  std::string key, value;
  while (pair.next()) {
    if (pair.tag() == 1)
      key = pair.get_string();
    else if (pair.tag() == 2)
      value = pair.get_string();
    else
      pair.skip();
  }
  return {key, value};
}

inline void read_attribute(pbf_reader attribute, OnnxNode& node) {
  std::string name;
  while (attribute.next()) switch (attribute.tag()) {
      case 1: name = attribute.get_string(); break;
      case 2: node.real[name] = attribute.get_float(); break;
      case 3: node.number[name] = attribute.get_int64(); break;
      case 4: node.text[name] = attribute.get_string(); break;
      case 8: node.numbers[name].push_back(attribute.get_int64()); break;
      default: attribute.skip();
    }
}

inline OnnxNode node_of(pbf_reader reader) {
  OnnxNode node;
  while (reader.next()) switch (reader.tag()) {
      case 1: node.inputs.push_back(reader.get_string()); break;
      case 2: node.outputs.push_back(reader.get_string()); break;
      case 3: node.name = reader.get_string(); break;
      case 4: node.op = reader.get_string(); break;
      case 5: read_attribute(reader.get_message(), node); break;
      default: reader.skip();
    }
  return node;
}

inline void read_weight(pbf_reader reader, OnnxFile& file) {
  std::vector<int64_t> shape;
  int64_t type = 0;
  std::string name, raw;
  std::map<std::string, std::string> outside;
  while (reader.next()) switch (reader.tag()) {
      case 1: shape.push_back(reader.get_int64()); break;
      case 2: type = reader.get_int32(); break;
      case 8: name = reader.get_string(); break;
      case 9: raw = reader.get_string(); break;
      case 13: outside.insert(pair_of(reader.get_message())); break;
      default: reader.skip();
    }
  at::Tensor tensor = at::empty(shape, onnx_scalar(type));
  if (!outside.empty()) {
    file.outside[name] = outside;
  } else if (raw.size() == tensor.nbytes()) {
    if (!raw.empty()) std::memcpy(tensor.data_ptr(), raw.data(), raw.size());
  } else {
    throw std::runtime_error(name + ": bytes do not fit its shape");
  }
  if (!file.weights.emplace(name, tensor).second) throw std::runtime_error(name + " twice");
}

inline OnnxPort port_of(pbf_reader reader) {
  OnnxPort port;
  while (reader.next()) {
    if (reader.tag() == 1) {
      port.name = reader.get_string();
      continue;
    }
    pbf_reader type = reader.get_message();
    while (type.next()) {
      pbf_reader tensor = type.get_message();
      while (tensor.next()) {
        if (tensor.tag() == 1) {
          port.type = tensor.get_int32();
          continue;
        }
        pbf_reader shape = tensor.get_message();
        while (shape.next()) {
          pbf_reader side = shape.get_message();
          while (side.next())
            port.shape.push_back(side.tag() == 1 ? std::to_string(side.get_int64())
                                                 : side.get_string());
        }
      }
    }
  }
  return port;
}

inline void read_graph(pbf_reader graph, OnnxFile& file) {
  while (graph.next()) switch (graph.tag()) {
      case 1: file.nodes.push_back(node_of(graph.get_message())); break;
      case 2: file.graph_name = graph.get_string(); break;
      case 5: read_weight(graph.get_message(), file); break;
      case 11: file.inputs.push_back(port_of(graph.get_message())); break;
      case 12: file.outputs.push_back(port_of(graph.get_message())); break;
      default: throw std::runtime_error("a field of a graph that nobody expects");
    }
}

}  // namespace onnx_reading

inline OnnxFile read_onnx(const std::string& bytes) {
  using namespace onnx_reading;
  OnnxFile file;
  pbf_reader model(bytes);
  while (model.next()) switch (model.tag()) {
      case 1: file.ir_version = model.get_int64(); break;
      case 2: file.producer = model.get_string(); break;
      case 7: read_graph(model.get_message(), file); break;
      case 8: {
        pbf_reader opset = model.get_message();
        while (opset.next())
          if (opset.tag() == 2)
            file.opset = opset.get_int64();
          else
            opset.skip();
        break;
      }
      case 14: file.metadata.insert(pair_of(model.get_message())); break;
      default: model.skip();
    }
  return file;
}

/// One step of ONNX's LSTM (gates: input, output, forget, cell) or GRU (update, reset, new).
inline std::pair<at::Tensor, at::Tensor> onnx_cell(const std::string& op, const at::Tensor& x,
                                                   const at::Tensor& y, const at::Tensor& h,
                                                   const at::Tensor& c) {
  if (op == "LSTM") {
    const auto gates = (x + y).chunk(4, 1);
    const at::Tensor next = at::sigmoid(gates[2]) * c + at::sigmoid(gates[0]) * at::tanh(gates[3]);
    return {at::sigmoid(gates[1]) * at::tanh(next), next};
  }
  const auto of_x = x.chunk(3, 1), of_h = y.chunk(3, 1);
  const at::Tensor update = at::sigmoid(of_x[0] + of_h[0]), reset = at::sigmoid(of_x[1] + of_h[1]);
  const at::Tensor fresh = at::tanh(of_x[2] + reset * of_h[2]);
  return {(1 - update) * fresh + update * h, c};
}

/// As the specification has it: beyond its number of steps a sample gives zeros.
inline std::vector<at::Tensor> onnx_recurrent(const OnnxNode& n,
                                              const std::vector<at::Tensor>& in) {
  if (n.op == "GRU" && n.whole("linear_before_reset", 0) != 1)
    throw std::runtime_error("a GRU that resets before its product is none of the test's");
  const int64_t length = in[0].size(0), batch = in[0].size(1), units = in[2].size(2);
  if (units != n.number.at("hidden_size")) throw std::runtime_error("hidden_size is another");
  const auto given = [&](size_t i) { return in.size() > i && in[i].defined(); };
  std::vector<at::Tensor> outputs, last_h, last_c;
  for (int64_t d = 0; d < in[1].size(0); ++d) {
    const at::Tensor bias = in[3][d];
    const int64_t half = bias.size(0) / 2;
    at::Tensor h = given(5) ? in[5][d] : at::zeros({batch, units});
    at::Tensor c = given(6) ? in[6][d] : at::zeros({batch, units});
    std::vector<at::Tensor> steps(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      const int64_t t = d == 0 ? i : length - 1 - i;
      const auto [next_h, next_c] =
          onnx_cell(n.op, at::mm(in[0][t], in[1][d].t()) + bias.slice(0, 0, half),
                    at::mm(h, in[2][d].t()) + bias.slice(0, half), h, c);
      const at::Tensor there =
          given(4) ? (in[4] > t).unsqueeze(1) : at::ones({batch, 1}, at::kBool);
      h = at::where(there, next_h, h);
      c = at::where(there, next_c, c);
      steps[static_cast<size_t>(t)] = at::where(there, h, at::zeros_like(h));
    }
    outputs.push_back(at::stack(steps));
    last_h.push_back(h);
    last_c.push_back(c);
  }
  return {at::stack(outputs, 1), at::stack(last_h), at::stack(last_c)};
}

/// Operators of graphs of sequences, and activations.
inline std::optional<std::vector<at::Tensor>> onnx_outputs_of_sequences(
    const OnnxNode& n, const std::vector<at::Tensor>& in) {
  const std::string& op = n.op;
  const auto pads = [&] {
    const auto all = n.numbers.at("pads");
    return std::vector<int64_t>(all.begin(),
                                all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  };
  const auto bias = [&] { return in.size() > 2 ? in[2] : at::Tensor(); };
  if (op == "LSTM" || op == "GRU") return onnx_recurrent(n, in);
  if (op == "Elu") return {{at::elu(in[0], n.real.at("alpha"))}};
  if (op == "Selu") return {{at::selu(in[0])}};
  if (op == "Softplus") return {{at::log1p(at::exp(in[0]))}};
  if (op == "Mish") return {{in[0] * at::tanh(at::log1p(at::exp(in[0])))}};
  if (op == "LogSoftmax") return {{at::log_softmax(in[0], n.whole("axis", -1))}};
  if (op == "Max") return {{at::maximum(in[0], in[1])}};
  if (op == "Min") return {{at::minimum(in[0], in[1])}};
  if (op == "ConvTranspose")
    return {{at::convolution(in[0], in[1], bias(), n.numbers.at("strides"), pads(),
                             std::vector<int64_t>(pads().size(), 1), /*transposed=*/true,
                             n.numbers.at("output_padding"), n.whole("group", 1))}};
  if (in.empty() || !in[0].defined() || in[0].dim() != 3) return std::nullopt;
  if (op == "Conv")
    return {{at::conv1d(in[0], in[1], bias(), n.numbers.at("strides"), pads(), {1},
                        n.whole("group", 1))}};
  if (op == "MaxPool")
    return {{at::max_pool1d(in[0], n.numbers.at("kernel_shape"), n.numbers.at("strides"), pads())}};
  if (op == "AveragePool")
    return {{at::avg_pool1d(in[0], n.numbers.at("kernel_shape"), n.numbers.at("strides"), pads(),
                            false, n.whole("count_include_pad", 0) != 0)}};
  if (op == "GlobalAveragePool") return {{in[0].mean({2}, true)}};
  if (op == "GlobalMaxPool") return {{in[0].amax({2}, true)}};
  return std::nullopt;
}

/// Operators that graphs of .pt2 files have beside those of ours.
inline std::vector<at::Tensor> onnx_outputs_of_exported(const OnnxNode& n,
                                                        const std::vector<at::Tensor>& in) {
  const std::string& op = n.op;
  const auto list = [](const at::Tensor& t) {
    const at::Tensor flat = t.to(at::kLong).contiguous().flatten();
    return std::vector<int64_t>(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  };
  const bool keep = n.whole("keepdims", 1) != 0;
  const auto axes = [&] { return in.size() > 1 ? list(in[1]) : std::vector<int64_t>{}; };
  if (op == "Sigmoid") return {at::sigmoid(in[0])};
  if (op == "HardSwish") return {in[0] * at::clamp(in[0] / 6 + 0.5, 0, 1)};
  if (op == "HardSigmoid") return {at::clamp(in[0] * n.real.at("alpha") + n.real.at("beta"), 0, 1)};
  if (op == "LeakyRelu") return {at::where(in[0] < 0, in[0] * n.real.at("alpha"), in[0])};
  if (op == "Clip") {
    at::Tensor y = in[0];
    if (in.size() > 1 && in[1].defined()) y = at::maximum(y, in[1]);
    if (in.size() > 2 && in[2].defined()) y = at::minimum(y, in[2]);
    return {y};
  }
  if (op == "Exp") return {at::exp(in[0])};
  if (op == "Sqrt") return {at::sqrt(in[0])};
  if (op == "Neg") return {-in[0]};
  if (op == "Where") return {at::where(in[0], in[1], in[2])};
  if (op == "ReduceMean") return {in[0].mean(axes(), keep)};
  if (op == "ReduceSum") return {in[0].sum(axes(), keep)};
  if (op == "ReduceL2") return {in[0].square().sum(axes(), keep).sqrt()};
  if (op == "Unsqueeze") return {in[0].unsqueeze(in[1].item<int64_t>())};
  if (op == "Squeeze") return {in[0].squeeze(in[1].item<int64_t>())};
  if (op == "Trilu") return {at::triu(in[0], in[1].item<int64_t>())};
  if (op == "Range")
    return {
        at::arange(in[0].item<int64_t>(), in[1].item<int64_t>(), in[2].item<int64_t>(), at::kLong)};
  if (op == "InstanceNormalization")
    return {at::instance_norm(in[0], in[1], in[2], {}, {}, true, 0, n.real.at("epsilon"), false)};
  throw std::runtime_error("ONNX operator " + op + " is not one of the test's");
}

/// The values of a node's outputs; `in`: of its inputs, undefined for those left out.
inline std::vector<at::Tensor> onnx_outputs(const OnnxNode& n, std::vector<at::Tensor> in) {
  const auto list = [](const at::Tensor& t) {
    const at::Tensor flat = t.to(at::kLong).contiguous().flatten();
    return std::vector<int64_t>(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  };
  const auto front = [&](const char* key, size_t count) {
    const auto all = n.numbers.at(key);
    return std::vector<int64_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  };
  const auto sides = [](const at::Tensor& t) { return t.sizes().vec(); };
  const auto bias = [&](size_t at) { return in.size() > at ? in[at] : at::Tensor(); };
  const std::string& op = n.op;
  if (auto made = onnx_outputs_of_sequences(n, in)) return *made;
  if (op == "Identity") return {in[0]};
  if (op == "Relu") return {at::relu(in[0])};
  if (op == "Tanh") return {at::tanh(in[0])};
  if (op == "Erf") return {at::erf(in[0])};
  if (op == "Round") return {at::round(in[0])};
  if (op == "Less") return {in[0] < in[1]};
  if (op == "Add") return {in[0] + in[1]};
  if (op == "Sub") return {in[0] - in[1]};
  if (op == "Mul") return {in[0] * in[1]};
  if (op == "Div")
    return {at::isIntegralType(in[0].scalar_type(), true) ? at::div(in[0], in[1], "trunc")
                                                          : in[0] / in[1]};
  if (op == "MatMul") return {at::matmul(in[0], in[1])};
  if (op == "Gemm") {
    at::Tensor y = at::mm(in[0], n.whole("transB", 0) != 0 ? in[1].t() : in[1]);
    return {in.size() > 2 ? y + in[2] : y};
  }
  if (op == "Conv")
    return {at::conv2d(
        in[0], in[1], bias(2), n.numbers.at("strides"), front("pads", 2),
        n.numbers.contains("dilations") ? n.numbers.at("dilations") : std::vector<int64_t>{1, 1},
        n.whole("group", 1))};
  if (op == "MaxPool")
    return {at::max_pool2d(in[0], n.numbers.at("kernel_shape"), n.numbers.at("strides"),
                           front("pads", 2))};
  if (op == "AveragePool")
    return {
        at::avg_pool2d(in[0], n.numbers.at("kernel_shape"), n.numbers.at("strides"),
                       n.numbers.contains("pads") ? front("pads", 2) : std::vector<int64_t>{0, 0},
                       false, n.whole("count_include_pad", 0) != 0)};
  if (op == "GlobalAveragePool") return {in[0].mean({2, 3}, true)};
  if (op == "BatchNormalization")
    return {
        at::batch_norm(in[0], in[1], in[2], in[3], in[4], false, 0, n.real.at("epsilon"), false)};
  if (op == "LayerNormalization")
    return {at::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], n.real.at("epsilon"))};
  if (op == "Softmax") return {at::softmax(in[0], n.whole("axis", -1))};
  if (op == "Flatten") return {in[0].flatten(n.whole("axis", 1))};
  if (op == "Transpose") return {in[0].permute(n.numbers.at("perm"))};
  if (op == "Concat") return {at::cat(in, n.whole("axis", 0))};
  if (op == "Split")
    return in.size() > 1 ? at::split_with_sizes(in[0], list(in[1]), n.whole("axis", 0))
                         : at::chunk(in[0], n.whole("num_outputs", 0), n.whole("axis", 0));
  if (op == "Gather") {
    const int64_t axis = n.whole("axis", 0);
    std::vector<int64_t> shape = sides(in[0]);
    shape.erase(shape.begin() + axis);
    const auto of = sides(in[1]);
    shape.insert(shape.begin() + axis, of.begin(), of.end());
    const at::Tensor rows = at::remainder(in[1].flatten(), in[0].size(axis));  // -1 is the last
    return {at::index_select(in[0], axis, rows).reshape(shape)};
  }
  if (op == "Reshape") {
    auto to = list(in[1]);
    for (size_t i = 0; i < to.size(); ++i)
      if (to[i] == 0 && n.whole("allowzero", 0) == 0) to[i] = in[0].size(static_cast<int64_t>(i));
    return {in[0].reshape(to)};
  }
  if (op == "Expand") {
    const auto to = list(in[1]);
    return {in[0] * at::ones(to, in[0].options())};
  }
  if (op == "Shape") {
    auto all = sides(in[0]);
    const auto begin = n.whole("start", 0), end = n.whole("end", std::ssize(all));
    return {at::tensor(std::vector<int64_t>(all.begin() + begin, all.begin() + end), at::kLong)};
  }
  if (op == "ReduceMin") return {in[0].min().reshape({1})};
  if (op == "Cast") return {in[0].to(onnx_scalar(n.number.at("to")))};
  if (op == "Slice") {
    at::Tensor out = in[0];
    const auto begin = list(in[1]), end = list(in[2]);
    const auto axes = list(in.size() > 3 ? in[3] : at::arange(std::ssize(begin)));
    for (size_t i = 0; i < axes.size(); ++i) out = out.slice(axes[i], begin[i], end[i]);
    return {out};
  }
  if (op == "Resize" && n.text.at("mode") == "nearest") {
    const at::Tensor scales = in.at(2);
    return {at::repeat_interleave(at::repeat_interleave(in[0], scales[2].item<int64_t>(), 2),
                                  scales[3].item<int64_t>(), 3)};
  }
  return onnx_outputs_of_exported(n, in);
}

/// What the program gives for these inputs, in their order. Throws where a node reads a value that
/// none before has made, or makes one twice.
inline std::vector<at::Tensor> run_onnx(const OnnxFile& file,
                                        const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values = file.weights;
  for (size_t i = 0; i < inputs.size(); ++i) values[file.inputs.at(i).name] = inputs[i];
  for (const OnnxNode& node : file.nodes) {
    std::vector<at::Tensor> in;
    for (const std::string& name : node.inputs)
      in.push_back(name.empty() ? at::Tensor() : values.at(name));
    const auto made = onnx_outputs(node, in);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (!values.emplace(node.outputs[i], made.at(i)).second)
        throw std::runtime_error(node.outputs[i] + " is made twice");
  }
  std::vector<at::Tensor> outputs;
  for (const OnnxPort& port : file.outputs) outputs.push_back(values.at(port.name));
  return outputs;
}

}  // namespace tutti::test
