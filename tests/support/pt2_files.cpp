#include "tests/support/pt2_files.h"

#include <zlib.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace tutti::test {
namespace {

void put(std::string& to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i));
}

uint64_t get(const std::string& from, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i)
    value = value << 8 | static_cast<uint8_t>(from.at(at + static_cast<size_t>(i)));
  return value;
}

uint32_t crc_of(const std::string& bytes) {
  const auto* data = reinterpret_cast<const Bytef*>(bytes.data());
  return static_cast<uint32_t>(::crc32(0, data, static_cast<uInt>(bytes.size())));
}

/// What the local header and the entry of the central directory have in common.
void put_facts(std::string& to, const ZipRecord& record, bool lies) {
  const uint32_t size = static_cast<uint32_t>(record.bytes.size());
  put(to, record.flags, 2);
  put(to, record.method, 2);
  put(to, 0, 4);  // time and date
  put(to, lies ? record.crc32.value_or(crc_of(record.bytes)) : crc_of(record.bytes), 4);
  put(to, lies ? record.stored_size.value_or(size) : size, 4);
  put(to, lies ? record.size.value_or(size) : size, 4);
  put(to, record.name.size(), 2);
}

}  // namespace

std::string ZipFile::root() const {
  const std::string& first = records.at(0).name;
  return first.substr(0, first.find('/') + 1);
}

ZipRecord& ZipFile::at(const std::string& name) {
  for (ZipRecord& record : records)
    if (record.name == root() + name) return record;
  throw std::logic_error("no record " + name);
}

void ZipFile::erase(const std::string& name) {
  at(name);
  std::erase_if(records, [&](const ZipRecord& record) { return record.name == root() + name; });
}

void ZipFile::add(const std::string& name, const std::string& bytes) {
  records.push_back({.name = root() + name, .bytes = bytes});
}

std::string ZipFile::bytes() const {
  std::string file, directory;
  for (const ZipRecord& record : records) {
    const size_t at = file.size();
    put(file, 0x04034b50, 4);
    put(file, 20, 2);
    put_facts(file, record, false);
    put(file, 0, 2);
    file += record.name + record.bytes;

    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);
    put(directory, 20, 2);
    put_facts(directory, record, true);
    put(directory, record.extra.size(), 2);
    put(directory, 0, 2);  // comment
    put(directory, 0, 2);  // disk
    put(directory, 0, 6);  // attributes
    put(directory, record.offset.value_or(static_cast<uint32_t>(at)), 4);
    directory += record.name + record.extra;
  }
  const size_t at = file.size();
  file += directory;
  put(file, 0x06054b50, 4);
  put(file, 0, 4);  // disks
  put(file, count.value_or(static_cast<uint16_t>(records.size())), 2);
  put(file, count.value_or(static_cast<uint16_t>(records.size())), 2);
  put(file, directory.size(), 4);
  put(file, directory_offset.value_or(static_cast<uint32_t>(at)), 4);
  put(file, comment.size(), 2);
  return file + comment;
}

ZipFile read_zip(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  if (file.size() < 22) throw std::logic_error(path + ": no zip");
  const size_t end = file.size() - 22;  // no comment
  ZipFile zip;
  size_t at = get(file, end + 16, 4);
  for (uint64_t left = get(file, end + 10, 2); left > 0; --left) {
    const size_t name = get(file, at + 28, 2), size = get(file, at + 20, 4);
    const size_t local = get(file, at + 42, 4);
    const size_t begin = local + 30 + get(file, local + 26, 2) + get(file, local + 28, 2);
    zip.records.push_back({.name = file.substr(at + 46, name), .bytes = file.substr(begin, size)});
    at += 46 + name + get(file, at + 30, 2) + get(file, at + 32, 2);
  }
  return zip;
}

void change_json(ZipFile& file, const std::string& name,
                 const std::function<void(OrderedJson&)>& change) {
  std::string& text = file.at(name).bytes;
  auto json = parse_json<OrderedJson>(text);
  change(json);
  text = json.dump();
}

std::string deflated(const std::string& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("no zlib");
  std::string packed(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string nested_arrays(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

OrderedJson& graph_of(OrderedJson& model) { return model.at("graph_module").at("graph"); }
OrderedJson& node_of(OrderedJson& model, size_t number) {
  return graph_of(model).at("nodes")[number];
}
OrderedJson& inputs_of(OrderedJson& model) {
  return model.at("graph_module").at("signature").at("input_specs");
}
OrderedJson& outputs_of(OrderedJson& model) {
  return model.at("graph_module").at("signature").at("output_specs");
}

OrderedJson tensor_json(const std::string& name) {
  OrderedJson tensor = OrderedJson::object(), argument = OrderedJson::object();
  tensor["name"] = name;
  argument["as_tensor"] = tensor;
  return argument;
}

OrderedJson node_json(const std::string& target,
                      const std::vector<std::pair<std::string, OrderedJson>>& inputs,
                      const std::string& output) {
  OrderedJson node = OrderedJson::object();
  node["target"] = target;
  node["inputs"] = OrderedJson::array();
  for (const auto& [name, argument] : inputs) {
    OrderedJson input = OrderedJson::object();
    input["name"] = name;
    input["arg"] = argument;
    input["kind"] = 1;
    node["inputs"].push_back(input);
  }
  node["outputs"] = OrderedJson::array();
  if (!output.empty()) node["outputs"].push_back(tensor_json(output));
  node["metadata"] = OrderedJson::object();
  return node;
}

void insert_node(OrderedJson& model, size_t before, const OrderedJson& node) {
  OrderedJson nodes = OrderedJson::array();
  const auto& old = graph_of(model).at("nodes").elements();
  for (size_t i = 0; i <= old.size(); ++i) {
    if (i == before) nodes.push_back(node);
    if (i < old.size()) nodes.push_back(old[i]);
  }
  graph_of(model)["nodes"] = nodes;
}

}  // namespace tutti::test
