// A program as the file that runtimes read: the numbers of fields and types are those of ONNX's
// onnx.proto, https://github.com/onnx/onnx/blob/v1.13.0/onnx/onnx.proto
#include "tutti/base/file.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include <protozero/pbf_writer.hpp>

#include "tutti/base/error.h"
#include "tutti/onnx/program.h"

namespace tutti::onnx {
namespace {

using protozero::pbf_writer;

// What a protobuf message can be, and those who read it take.
constexpr int64_t kMostBytes = 2'147'483'647;

template <class Fill>
void add_message(pbf_writer& to, protozero::pbf_tag_type field, Fill&& fill) {
  pbf_writer inner(to, field);
  fill(inner);
}

void add_pair(pbf_writer& to, protozero::pbf_tag_type field, const std::string& key,
              const std::string& value) {
  add_message(to, field, [&](pbf_writer& pair) {
    pair.add_string(1, key);
    pair.add_string(2, value);
  });
}

// A ValueInfoProto.
void add_port(pbf_writer& to, protozero::pbf_tag_type field, const Port& port) {
  add_message(to, field, [&](pbf_writer& info) {
    info.add_string(1, port.name);
    add_message(info, 2, [&](pbf_writer& type) {
      add_message(type, 1, [&](pbf_writer& tensor) {
        tensor.add_int32(1, type_number(port.type.dtype));
        add_message(tensor, 2, [&](pbf_writer& shape) {
          for (const Dimension& side : port.type.shape) {
            add_message(shape, 1, [&](pbf_writer& dimension) {
              if (side.symbol.empty())
                dimension.add_int64(1, side.size);
              else
                dimension.add_string(2, side.symbol);
            });
          }
        });
      });
    });
  });
}

// An AttributeProto: the value, and the number of its kind.
struct AttributeValue {
  pbf_writer& to;
  void operator()(int64_t value) const {
    to.add_int64(3, value);
    to.add_enum(20, 2);
  }
  void operator()(float value) const {
    to.add_float(2, value);
    to.add_enum(20, 1);
  }
  void operator()(const std::string& value) const {
    to.add_bytes(4, value);
    to.add_enum(20, 3);
  }
  void operator()(const std::vector<int64_t>& values) const {
    for (const int64_t value : values) to.add_int64(8, value);
    to.add_enum(20, 7);
  }
};

void add_node(pbf_writer& graph, const Node& node) {
  add_message(graph, 1, [&](pbf_writer& to) {
    for (const std::string& input : node.inputs) to.add_string(1, input);
    for (const std::string& output : node.outputs) to.add_string(2, output);
    to.add_string(3, node.name);
    to.add_string(4, node.op);
    for (const Attribute& attribute : node.attributes) {
      add_message(to, 5, [&](pbf_writer& inner) {
        inner.add_string(1, attribute.name);
        std::visit(AttributeValue{inner}, attribute.value);
      });
    }
  });
}

// Where weights stand that are in a file of their own.
struct Outside {
  std::string file;  // "": they are inside
  int64_t end = 0;   // of those before

  // Weights begin at multiples of this, so that they can be mapped.
  static constexpr int64_t kAlignment = 4096;
  static int64_t padding(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }
  // Small ones stay inside: runtimes read shapes of them while they load.
  bool takes(const Weight& weight) const {
    constexpr int64_t kSmall = 1024;
    return !file.empty() && weight.array.num_bytes() > kSmall;
  }
};

void add_weight(pbf_writer& graph, const Weight& weight, Outside& outside) {
  const Array& array = weight.array;
  add_message(graph, 5, [&](pbf_writer& to) {
    for (const int64_t side : array.shape()) to.add_int64(1, side);
    to.add_int32(2, type_number(array.dtype()));
    to.add_string(8, weight.name);
    if (!outside.takes(weight)) {
      to.add_bytes(9, static_cast<const char*>(array.data()),
                   static_cast<size_t>(array.num_bytes()));
      return;
    }
    add_pair(to, 13, "location", outside.file);
    add_pair(to, 13, "offset", std::to_string(outside.end));
    add_pair(to, 13, "length", std::to_string(array.num_bytes()));
    to.add_enum(14, 1);
    outside.end += array.num_bytes() + Outside::padding(array.num_bytes());
  });
}

struct File {
  const std::string& name;
  const Program& program;
  const std::map<std::string, std::string>& metadata;

  std::string bytes(Outside& outside) const {
    std::string made;
    made.reserve(static_cast<size_t>(outside.file.empty() ? program.weight_bytes() : 0) + 65'536);
    pbf_writer model(made);
    model.add_int64(1, kIrVersion);
    model.add_string(2, "tutti");
    model.add_string(3, TUTTI_VERSION);
    add_message(model, 7, [&](pbf_writer& graph) {
      for (const Node& node : program.all_nodes()) add_node(graph, node);
      graph.add_string(2, name);
      for (const Weight& weight : program.weights()) add_weight(graph, weight, outside);
      for (const Port& input : program.inputs()) add_port(graph, 11, input);
      for (const Port& output : program.outputs()) add_port(graph, 12, output);
    });
    add_message(model, 8, [](pbf_writer& opset) {
      opset.add_string(1, "");
      opset.add_int64(2, kOpset);
    });
    for (const auto& [key, text] : metadata) add_pair(model, 14, key, text);
    return made;
  }
};

}  // namespace

int type_number(DType dtype) {
  switch (dtype) {
    case DType::float32: return 1;
    case DType::uint8: return 2;
    case DType::int8: return 3;
    case DType::uint16: return 4;
    case DType::int16: return 5;
    case DType::int32: return 6;
    case DType::int64: return 7;
    case DType::boolean: return 9;
    case DType::float16: return 10;
    case DType::float64: return 11;
    case DType::uint32: return 12;
    case DType::uint64: return 13;
    case DType::bfloat16: return 16;
  }
  throw UsageError("onnx: no such dtype");
}

std::string Program::bytes() const {
  const auto refuse = [&](int64_t bytes) {
    throw Error(
        fmt::format("onnx: \"{}\" has {} bytes, and a file of ONNX at most {}: weights "
                    "stand in a file of their own where write() puts it on a disk",
                    name_, bytes, kMostBytes));
  };
  if (weight_bytes() > kMostBytes) refuse(weight_bytes());
  Outside outside;
  std::string made = File{name_, *this, metadata_}.bytes(outside);
  if (std::ssize(made) > kMostBytes) refuse(std::ssize(made));
  return made;
}

WrittenFile Program::write(const std::filesystem::path& path, int64_t most_inside) const {
  if (weight_bytes() <= most_inside) {
    const std::string made = bytes();
    write_file_atomically(path, made);
    return {.data = {}, .bytes = std::ssize(made)};
  }
  const std::filesystem::path data = path.string() + ".data";
  Outside outside{.file = data.filename().string()};
  const std::string made = File{name_, *this, metadata_}.bytes(outside);
  static constexpr std::array<std::byte, Outside::kAlignment> kZeros{};
  std::vector<std::span<const std::byte>> pieces;
  for (const Weight& weight : weights_) {
    if (!outside.takes(weight)) continue;
    const auto num_bytes = weight.array.num_bytes();
    pieces.emplace_back(static_cast<const std::byte*>(weight.array.data()),
                        static_cast<size_t>(num_bytes));
    pieces.emplace_back(kZeros.data(), static_cast<size_t>(Outside::padding(num_bytes)));
  }
  write_file_atomically(data, pieces);
  write_file_atomically(path, made);
  return {.data = data, .bytes = std::ssize(made) + outside.end};
}

}  // namespace tutti::onnx
