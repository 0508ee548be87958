// The flight record as JSON. Fields that are needed and missing, or of another kind, are named.
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/comm/flight/flight_record.h"

namespace tutti {
namespace {

using detail::Call;

constexpr int kVersion = 1;
constexpr int kNumDTypes = static_cast<int>(DType::float64) + 1;
constexpr int kNumReductions = static_cast<int>(ReduceOp::logical_xor) + 1;
constexpr int kNumCollectives = static_cast<int>(Collective::recv) + 1;

Json json_of(const FlightOperation& operation) {
  const Call& call = operation.call;
  Json object = {{"number", operation.number},     {"operation", name_of(call.collective)},
                 {"file", operation.file},         {"line", operation.line},
                 {"function", operation.function}, {"state", name_of(operation.state)}};
  if (call.collective != Collective::barrier) {
    object["dtype"] = name_of(call.dtype);
    object["elements"] = call.elements;
  }
  if (detail::reduces(call.collective)) object["reduction"] = name_of(call.reduce);
  if (detail::has_root(call.collective)) object["root"] = call.root;
  if (detail::is_message(call.collective)) {
    object["peer"] = call.root;
    object["tag"] = call.tag;
  }
  if (operation.begun_us != 0) object["begun_us"] = operation.begun_us;
  if (operation.ended_us != 0) object["ended_us"] = operation.ended_us;
  return object;
}

/// A value of the file with the way to it, "groups[1].operations[3].line".
class Node {
 public:
  Node(const Json& value, std::string way, const std::string& path)
      : value_(value), way_(std::move(way)), path_(path) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(fmt::format("{}: {} {}; is this a flight record, and whole?", path_,
                                way_.empty() ? "the file" : way_, why));
  }
  Node at(const char* key) const {
    if (!value_.is_object()) fail("is not an object");
    const auto found = value_.find(key);
    const std::string way = way_.empty() ? key : way_ + "." + key;
    if (found == value_.end()) Node(value_, way, path_).fail("is missing");
    return {*found, way, path_};
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  std::string text() const {
    if (!value_.is_string()) fail(fmt::format("is {}, expected a text", shown()));
    return value_.get<std::string>();
  }
  int64_t number(int64_t low, int64_t high) const {
    const bool fits = value_.is_number_integer() &&
                      (!value_.is_number_unsigned() || value_.get<uint64_t>() <= INT64_MAX);
    const int64_t number = fits ? value_.get<int64_t>() : low;
    if (!fits || number < low || number > high) {
      fail(fmt::format("is {}, expected a whole number from {} to {}", shown(), low, high));
    }
    return number;
  }
  int small(int64_t low) const { return static_cast<int>(number(low, INT32_MAX)); }
  /// One of the names that `name` gives to 0, 1, ... below `count`.
  template <class Enum>
  Enum one_of(int count, std::string_view (*name)(Enum) noexcept) const {
    const std::string word = text();
    for (int i = 0; i < count; ++i) {
      if (word == name(static_cast<Enum>(i))) return static_cast<Enum>(i);
    }
    fail(fmt::format("is \"{}\", which is none that is known", word));
  }
  template <class Read>
  void each(const Read& read) const {
    if (!value_.is_array()) fail("is not a list");
    for (size_t i = 0; i < value_.size(); ++i) {
      read(Node(value_[i], fmt::format("{}[{}]", way_, i), path_));
    }
  }

 private:
  std::string shown() const { return dump_json(value_).substr(0, 60); }

  const Json& value_;
  std::string way_;
  const std::string& path_;
};

FlightOperation operation_of(const Node& node) {
  FlightOperation operation;
  Call& call = operation.call;
  operation.number = static_cast<uint64_t>(node.at("number").number(1, INT64_MAX));
  call.collective = node.at("operation").one_of<Collective>(kNumCollectives, name_of);
  operation.file = node.at("file").text();
  operation.line = static_cast<uint32_t>(node.at("line").number(0, UINT32_MAX));
  operation.function = node.at("function").text();
  operation.state = node.at("state").one_of<FlightOperation::State>(3, name_of);
  if (call.collective != Collective::barrier) {
    call.dtype = node.at("dtype").one_of<DType>(kNumDTypes, name_of);
    call.elements = node.at("elements").number(0, INT64_MAX);
  }
  if (detail::reduces(call.collective)) {
    call.reduce = node.at("reduction").one_of<ReduceOp>(kNumReductions, name_of);
  }
  if (detail::has_root(call.collective)) call.root = node.at("root").small(0);
  if (detail::is_message(call.collective)) {
    call.root = node.at("peer").small(kAnyRank);
    call.tag = node.at("tag").small(0);
  }
  if (node.has("begun_us")) operation.begun_us = node.at("begun_us").number(0, INT64_MAX);
  if (node.has("ended_us")) operation.ended_us = node.at("ended_us").number(0, INT64_MAX);
  return operation;
}

FlightGroup group_of(const Node& node) {
  FlightGroup group;
  group.name = node.at("name").text();
  group.engine = node.at("engine").text();
  group.size = node.at("size").small(1);
  group.rank = node.at("rank").small(0);
  if (group.rank >= group.size) {
    node.at("rank").fail(fmt::format("is {} in a group of {}", group.rank, group.size));
  }
  group.failure = node.at("failure").text();
  node.at("operations").each([&](const Node& operation) {
    group.operations.push_back(operation_of(operation));
  });
  return group;
}

}  // namespace

std::string_view name_of(FlightOperation::State state) noexcept {
  constexpr std::string_view kNames[] = {"submitted", "done", "failed"};
  return kNames[static_cast<size_t>(state)];
}

std::string to_json(const FlightRecord& record) {
  Json object = {{"tutti_flight_record", kVersion},
                 {"job", record.job},
                 {"worker", record.worker},
                 {"num_workers", record.num_workers},
                 {"host", record.host},
                 {"pid", record.pid},
                 {"groups", Json::array()}};
  for (const FlightGroup& group : record.groups) {
    Json operations = Json::array();
    for (const auto& operation : group.operations) operations.push_back(json_of(operation));
    object["groups"].push_back({{"name", group.name},
                                {"engine", group.engine},
                                {"rank", group.rank},
                                {"size", group.size},
                                {"failure", group.failure},
                                {"operations", std::move(operations)}});
  }
  return dump_json_lossy(object, 1) + "\n";
}

FlightRecord parse_flight_record(std::string_view text, const std::filesystem::path& path) {
  const std::string shown = path.string();
  Json object;
  try {
    object = parse_json(text);
  } catch (const JsonSyntaxError& error) {
    throw DataError(
        fmt::format("{}: not JSON at byte {} of {}; is it whole?", shown, error.byte, text.size()));
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: {}", shown, error.what()));
  }
  const Node root(object, "", shown);
  root.at("tutti_flight_record").number(kVersion, kVersion);
  FlightRecord record;
  record.job = root.at("job").text();
  record.worker = root.at("worker").small(-1);
  record.num_workers = root.at("num_workers").small(0);
  record.host = root.at("host").text();
  record.pid = root.at("pid").small(0);
  root.at("groups").each([&](const Node& group) { record.groups.push_back(group_of(group)); });
  return record;
}

}  // namespace tutti
