/// Files of torch.export, taken apart and put together wrongly: a zip as a list of records, each of
/// which may lie, and JSON in it. tests/tables/exported has sound ones.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::test {

/// A record of a zip, and what its entry in the central directory says where that is not true.
struct ZipRecord {
  std::string name;  ///< with the root folder
  std::string bytes;
  uint16_t method = 0, flags = 0;
  std::optional<uint32_t> crc32 = {}, stored_size = {}, size = {}, offset = {};
  std::string extra = {};  ///< of the entry in the central directory
};

struct ZipFile {
  std::vector<ZipRecord> records;
  std::optional<uint16_t> count = {};             ///< instead of how many there are
  std::optional<uint32_t> directory_offset = {};  ///< instead of where the directory is
  std::string comment = {};

  /// The record of that name without its root folder; a test that asks for another fails hard.
  ZipRecord& at(const std::string& name);
  void erase(const std::string& name);
  /// A record like the others' in the same root folder.
  void add(const std::string& name, const std::string& bytes);
  std::string root() const;  ///< "mlp/"

  std::string bytes() const;  ///< as a file
};

/// Reads a sound zip of stored records, as tests/tables/exported has them.
ZipFile read_zip(const std::string& path);

/// The record `name` as JSON, changed, and written back.
void change_json(ZipFile& file, const std::string& name,
                 const std::function<void(OrderedJson&)>& change);

/// Bytes as zlib's raw deflate, as a zip keeps them under method 8.
std::string deflated(const std::string& bytes);

/// `depth` arrays within one another.
std::string nested_arrays(size_t depth);

inline const std::string kModel = "models/model.json";
inline const std::string kWeights = "data/weights/model_weights_config.json";

OrderedJson& graph_of(OrderedJson& model);  ///< graph_module.graph
OrderedJson& node_of(OrderedJson& model, size_t number);
OrderedJson& inputs_of(OrderedJson& model);   ///< signature.input_specs
OrderedJson& outputs_of(OrderedJson& model);  ///< signature.output_specs
/// A node that takes `inputs`, {{"size", {{"as_ints", [1]}}}, ...}, and gives one tensor.
OrderedJson node_json(const std::string& target,
                      const std::vector<std::pair<std::string, OrderedJson>>& inputs,
                      const std::string& output);
/// {"as_tensor": {"name": name}}
OrderedJson tensor_json(const std::string& name);
void insert_node(OrderedJson& model, size_t before, const OrderedJson& node);

}  // namespace tutti::test
