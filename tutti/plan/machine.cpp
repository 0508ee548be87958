#include "tutti/plan/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"

namespace tutti::plan {
namespace {

constexpr int kMachineVersion = 1;

/// Straight through two points.
double line(double x0, double y0, double x1, double y1, double x) {
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

void require(bool holds, const std::string& field, const std::string& got, const char* expected) {
  if (!holds) throw UsageError(fmt::format("{} is {}; expected {}", field, got, expected));
}

void require_number(const std::string& field, double value, bool above_zero = false) {
  constexpr double kMost = 1e18;  // of bytes a second, and seconds: no machine is like that
  const bool holds = value <= kMost && (above_zero ? value > 0 : value >= 0);
  require(holds, field, fmt::format("{}", value),
          above_zero ? "a number above 0, at most 1e18" : "a number from 0 to 1e18");
}

void check_engine(const std::string& field, const EngineSpeed& engine) {
  require_number(field + ".latency", engine.latency);
  require_number(field + ".bytes_per_second", engine.bytes_per_second, true);
}

void check_link(const MeasuredLink& link) {
  require_number("link.bytes_per_second", link.wire.bytes_per_second, true);
  require_number("link.latency", link.wire.latency);
  require(link.hosts >= 2, "link.hosts", fmt::format("{}", link.hosts), "2 or more");
}

OrderedJson json_of(const EngineSpeed& engine) {
  return {{"latency", engine.latency}, {"bytes_per_second", engine.bytes_per_second}};
}

OrderedJson json_of(const MeasuredLink& link) {
  return {{"bytes_per_second", link.wire.bytes_per_second},
          {"latency", link.wire.latency},
          {"hosts", link.hosts}};
}

/// Takes the fields of an object one by one; what is left at the end nobody knows.
class Fields {
 public:
  Fields(const OrderedJson& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object.is_object()) throw DataError(place_ + ": expected a JSON object");
  }

  template <class T>
  void take(const std::string& name, T& to) {
    names_.push_back(name);
    const auto found = object_.find(name);
    if (found == object_.end()) throw DataError(fmt::format("{}: {} is missing", place_, name));
    read(*found, fmt::format("{}: {}", place_, name), to);
  }

  /// One that may be left out.
  template <class T>
  void take(const std::string& name, std::optional<T>& to) {
    if (object_.contains(name))
      take(name, to.emplace());
    else
      names_.push_back(name);
  }

  void end() const {
    for (const auto& [key, value] : object_.items())
      if (std::ranges::find(names_, key) == names_.end())
        throw DataError(place_ + ": " + unknown_message("field", key, names_));
  }

 private:
  static void fail(const std::string& place, const OrderedJson& value, const char* expected) {
    throw DataError(fmt::format("{} is {}; expected {}", place, dump_json(value), expected));
  }
  static void read(const OrderedJson& value, const std::string& place, std::string& to) {
    if (!value.is_string()) fail(place, value, "a text");
    to = value.get<std::string>();
  }
  static void read(const OrderedJson& value, const std::string& place, double& to) {
    if (!value.is_number()) fail(place, value, "a number");
    to = value.get<double>();
  }
  template <class Whole>
    requires std::is_integral_v<Whole>
  static void read(const OrderedJson& value, const std::string& place, Whole& to) {
    double number = 0;
    read(value, place, number);
    constexpr double kMost = std::is_same_v<Whole, int> ? 1e9 : 1e18;
    if (number != std::floor(number) || std::abs(number) > kMost)
      fail(place, value, "a whole number");
    to = static_cast<Whole>(number);
  }
  static void read(const OrderedJson& value, const std::string& place, EngineSpeed& to) {
    Fields fields(value, place);
    fields.take("latency", to.latency);
    fields.take("bytes_per_second", to.bytes_per_second);
    fields.end();
  }
  static void read(const OrderedJson& value, const std::string& place, MeasuredLink& to) {
    Fields fields(value, place);
    fields.take("bytes_per_second", to.wire.bytes_per_second);
    fields.take("latency", to.wire.latency);
    fields.take("hosts", to.hosts);
    fields.end();
  }
  static void read(const OrderedJson& value, const std::string& place, BatchTime& to) {
    Fields fields(value, place);
    fields.take("batch", to.batch);
    fields.take("forward", to.forward);
    fields.take("backward", to.backward);
    fields.end();
  }
  template <class T>
  static void read(const OrderedJson& value, const std::string& place, std::vector<T>& to) {
    if (!value.is_array()) fail(place, value, "a list");
    to.assign(value.size(), T{});
    for (size_t i = 0; i < to.size(); ++i) read(value[i], fmt::format("{}[{}]", place, i), to[i]);
  }

  const OrderedJson& object_;
  std::string place_;
  std::vector<std::string> names_;
};

/// The one list of fields, in the order of the file.
template <class AnyMachine, class Visit>
void visit_fields(AnyMachine& machine, Visit&& visit) {
  visit("name", machine.name);
  visit("model", machine.model);
  visit("parameters", machine.parameters);
  visit("bytes", machine.bytes);
  visit("largest_parameter", machine.largest_parameter);
  visit("compute", machine.compute);
  visit("jitter", machine.jitter);
  visit("update", machine.update);
  visit("update_streams", machine.update_streams);
  visit("input", machine.input);
  visit("cores", machine.cores);
  visit("core_memory_rate", machine.core_memory_rate);
  visit("memory_rate", machine.memory_rate);
  visit("memory", machine.memory);
  visit("fixed_memory", machine.fixed_memory);
  visit("sample_memory", machine.sample_memory);
  visit("shm", machine.shm);
  visit("tcp", machine.tcp);
  visit("payload", machine.payload);
  visit("compute_error", machine.compute_error);
  visit("communication_error", machine.communication_error);
  visit("link", machine.link);
}

}  // namespace

BatchTime Machine::compute_of(double batch) const {
  BatchTime result{.batch = static_cast<int64_t>(std::ceil(batch))};
  const BatchTime& first = compute.front();
  if (compute.size() == 1) {
    const double times = batch / static_cast<double>(first.batch);
    result.forward = first.forward * times;
    result.backward = first.backward * times;
    return result;
  }
  auto right = std::ranges::find_if(
      compute, [&](const BatchTime& one) { return static_cast<double>(one.batch) >= batch; });
  right = std::clamp(right, compute.begin() + 1, compute.end() - 1);
  const BatchTime &low = right[-1], &high = *right;
  const auto at = [&](double BatchTime::* part) {
    return std::max(0.0, line(static_cast<double>(low.batch), low.*part,
                              static_cast<double>(high.batch), high.*part, batch));
  };
  result.forward = at(&BatchTime::forward);
  result.backward = at(&BatchTime::backward);
  return result;
}

double Machine::memory_of(double batch) const { return fixed_memory + sample_memory * batch; }

int64_t Machine::largest_batch(int replicas) const {
  const double left = static_cast<double>(memory) / replicas - fixed_memory;
  if (left < sample_memory || left <= 0) return 0;
  constexpr int64_t kMost = int64_t{1} << 40;
  if (sample_memory == 0) return kMost;
  return static_cast<int64_t>(std::min(left / sample_memory, static_cast<double>(kMost)));
}

void check(const Machine& machine) {
  const auto whole = [](const char* field, int64_t value) {
    require(value > 0, field, fmt::format("{}", value), "a whole number above 0");
  };
  whole("parameters", machine.parameters);
  whole("bytes", machine.bytes);
  whole("largest_parameter", machine.largest_parameter);
  whole("cores", machine.cores);
  whole("memory", machine.memory);
  require(!machine.compute.empty(), "compute", "empty", "the times of one batch or more");
  int64_t last = 0;
  for (size_t i = 0; i < machine.compute.size(); ++i) {
    const BatchTime& time = machine.compute[i];
    const std::string place = fmt::format("compute[{}].", i);
    require(time.batch > last, place + "batch", fmt::format("{}", time.batch),
            "more than 0 and than the one before");
    last = time.batch;
    require_number(place + "forward", time.forward);
    require_number(place + "backward", time.backward);
  }
  require(machine.jitter.size() >= 2, "jitter", fmt::format("{} numbers", machine.jitter.size()),
          "2 or more");
  for (size_t i = 0; i < machine.jitter.size(); ++i) {
    const std::string place = fmt::format("jitter[{}]", i);
    require_number(place, machine.jitter[i]);
    require(i == 0 || machine.jitter[i] >= machine.jitter[i - 1], place,
            fmt::format("{}", machine.jitter[i]), "no less than the one before");
  }
  require_number("update", machine.update);
  require(machine.update_streams >= 1 && std::isfinite(machine.update_streams), "update_streams",
          fmt::format("{}", machine.update_streams), "a number from 1");
  require_number("input", machine.input);
  require_number("core_memory_rate", machine.core_memory_rate, true);
  require_number("memory_rate", machine.memory_rate, true);
  require_number("fixed_memory", machine.fixed_memory);
  require_number("sample_memory", machine.sample_memory);
  check_engine("shm", machine.shm);
  check_engine("tcp", machine.tcp);
  require(machine.payload > 0 && machine.payload <= 1, "payload",
          fmt::format("{}", machine.payload), "a share above 0 and up to 1");
  for (const auto& [field, value] : {std::pair{"compute_error", machine.compute_error},
                                     std::pair{"communication_error", machine.communication_error}})
    require(value >= 0 && value < 1, field, fmt::format("{}", value), "from 0 to below 1");
  if (machine.link) check_link(*machine.link);
}

Machine parse_machine(std::string_view json, std::string_view origin) {
  const std::string place(origin);
  OrderedJson whole;
  try {
    whole = parse_json<OrderedJson>(json);
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: not a machine file: {}", place, error.what()));
  }
  if (!whole.is_object() || !whole.contains("tutti_machine"))
    throw DataError(place + ": not a machine file: expected what `tutti plan measure` writes");
  if (whole["tutti_machine"] != kMachineVersion)
    throw DataError(fmt::format("{}: tutti_machine is {}; expected {}: measure again", place,
                                dump_json(whole["tutti_machine"]), kMachineVersion));
  Machine machine;
  Fields fields(whole, place);
  int version = 0;
  fields.take("tutti_machine", version);
  visit_fields(machine, [&](const char* name, auto& field) { fields.take(name, field); });
  fields.end();
  try {
    check(machine);
  } catch (const UsageError& error) {
    throw DataError(fmt::format("{}: {}", place, error.what()));
  }
  return machine;
}

std::string to_json(const Machine& machine) {
  OrderedJson whole = {{"tutti_machine", kMachineVersion}};
  visit_fields(machine, [&]<class Field>(const char* name, const Field& field) {
    if constexpr (std::is_same_v<Field, EngineSpeed>) {
      whole[name] = json_of(field);
    } else if constexpr (std::is_same_v<Field, std::optional<MeasuredLink>>) {
      if (field) whole[name] = json_of(*field);
    } else if constexpr (std::is_same_v<Field, std::vector<BatchTime>>) {
      whole[name] = OrderedJson::array();
      for (const BatchTime& time : field)
        whole[name].push_back(
            {{"batch", time.batch}, {"forward", time.forward}, {"backward", time.backward}});
    } else {
      whole[name] = field;
    }
  });
  return dump_json(whole, 1) + "\n";
}

Machine load_machine(const std::filesystem::path& path) {
  return parse_machine(read_file(path), path.string());
}

void save_machine(const Machine& machine, const std::filesystem::path& path) {
  check(machine);
  write_file_atomically(path, to_json(machine));
}

}  // namespace tutti::plan
