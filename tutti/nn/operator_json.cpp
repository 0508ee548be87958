#include "tutti/nn/detail/operator_json.h"

namespace tutti::nn::detail {
namespace {

[[noreturn]] void refuse(const Json& json, const char* expected) {
  throw JsonError(fmt::format("got {}, expected {}", dump_json_lossy(json), expected));
}

constexpr const char* kNoFunction = "a function of the program's own, which no file has";

}  // namespace

OrderedJson field_json(const std::shared_ptr<const LambdaFunction>&) {
  throw JsonError(kNoFunction);
}
void read_field(const Json&, std::shared_ptr<const LambdaFunction>&) {
  throw JsonError(kNoFunction);
}

void read_field(const Json& json, std::string& to) {
  if (!json.is_string()) refuse(json, "words");
  to = json.get<std::string>();
}

void read_field(const Json& json, int64_t& to) {
  constexpr const char* kExpected = "a whole number from 0 to 2147483647";
  if (!json.is_number_integer()) refuse(json, kExpected);
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{kMostOfGraph})
    refuse(json, kExpected);
  to = json.get<int64_t>();
  if (to < 0 || to > kMostOfGraph) refuse(json, kExpected);
}

void read_field(const Json& json, double& to) {
  if (!json.is_number() || !std::isfinite(json.get<double>())) refuse(json, "a number");
  to = json.get<double>();
}

void read_field(const Json& json, bool& to) {
  if (!json.is_boolean()) refuse(json, "true or false");
  to = json.get<bool>();
}

void read_field(const Json& json, Size2d& to) {
  if (!json.is_array() || json.size() != 2) refuse(json, "[height, width]");
  read_field(json[0], to.height);
  read_field(json[1], to.width);
}

void read_field(const Json& json, DType& to) {
  constexpr DType kLast = DType::float64;
  std::vector<std::string> known;
  for (int i = 0; i <= static_cast<int>(kLast); ++i) {
    to = static_cast<DType>(i);
    if (json == name_of(to)) return;
    known.emplace_back(name_of(to));
  }
  if (!json.is_string()) refuse(json, "the name of a dtype");
  throw JsonError(unknown_message("dtype", json.text(), known));
}

void read_field(const Json& json, Shape& to) {
  constexpr size_t kMostDimensions = 16;
  if (!json.is_array() || json.size() > kMostDimensions) refuse(json, "a list of up to 16 sizes");
  to.clear();
  for (const Json& side : json) read_field(side, to.emplace_back());
}

void refuse_others(const Json& json, const std::vector<std::string>& known) {
  if (!json.is_object()) refuse(json, "an object");
  for (const auto& [name, value] : json.items())
    if (std::ranges::find(known, name) == known.end())
      throw JsonError(unknown_message("field", name, known));
}

}  // namespace tutti::nn::detail
