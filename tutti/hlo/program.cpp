#include "tutti/hlo/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/hlo/checks.h"
#include "tutti/hlo/instruction.h"

namespace tutti::hlo {
namespace {

// As StableHLO writes it; empty for one that programs have not.
std::string_view element_name(DType dtype) {
  switch (dtype) {
    case DType::boolean: return "i1";
    case DType::int32: return "i32";
    case DType::uint32: return "ui32";
    case DType::int64: return "i64";
    case DType::uint64: return "ui64";
    case DType::bfloat16: return "bf16";
    case DType::float32: return "f32";
    default: return {};
  }
}

}  // namespace

std::string to_string(const Type& type) {
  std::string text = "tensor<";
  for (const int64_t size : type.shape) text += fmt::format("{}x", size);
  const std::string_view name = element_name(type.dtype);
  return fmt::format("{}{}>", text, name.empty() ? name_of(type.dtype) : name);
}

int64_t num_elements(const Type& type) {
  return std::accumulate(type.shape.begin(), type.shape.end(), int64_t{1}, std::multiplies<>());
}

void require_type(std::string_view operation, const Type& type) {
  if (element_name(type.dtype).empty())
    refuse(operation, to_string(type),
           "float32, bfloat16, bool, int32, uint32, int64 or uint64 as its elements");
  if (std::ranges::any_of(type.shape, [](int64_t size) { return size < 0; }))
    refuse(operation, to_string(type), "no dimension below 0");
}

const Type& Value::type() const { return program_->instruction(number_).type; }

Program::Program(std::string name) : name_(std::move(name)) {}
Program::~Program() = default;

Value Program::argument(Type type, std::string name) {
  require_type("Program::argument", type);
  const Value value = add({.op = Op::argument, .type = std::move(type), .name = std::move(name)});
  arguments_.push_back(value.number());
  return value;
}

int Program::result(Value value, std::string name) {
  if (&value.program() != this)
    refuse("Program::result", fmt::format("a value of program {}", value.program().name()),
           fmt::format("one of {}", name_));
  results_.push_back({value.number(), std::move(name)});
  return num_results() - 1;
}

void Program::give_away(Value argument, int result) {
  Instruction& given = *instructions_[static_cast<size_t>(argument.number())];
  const bool fits = result >= 0 && result < num_results() &&
                    value(results_[static_cast<size_t>(result)].number).type() == argument.type();
  if (given.op != Op::argument || !fits)
    refuse("Program::give_away",
           fmt::format("{} for result {} of {}", to_string(argument.type()), result, num_results()),
           "an argument, and a result of its type");
  given.becomes = result;
}

void Program::comes_anew(Value argument) {
  Instruction& given = *instructions_[static_cast<size_t>(argument.number())];
  if (given.op != Op::argument || given.becomes >= 0)
    refuse("Program::comes_anew", to_string(argument.type()), "an argument that is not given away");
  given.anew = true;
}

void Program::comment(std::string words) { comment_ = std::move(words); }

void Program::set_replicas(int replicas) {
  if (replicas < 1) refuse("Program::set_replicas", fmt::format("{}", replicas), "1 or more");
  replicas_ = replicas;
}

Value Program::add(Instruction instruction) {
  instruction.comment = comment_;
  instructions_.push_back(std::make_unique<Instruction>(std::move(instruction)));
  return value(num_instructions() - 1);
}

Value Program::value(int number) { return {*this, number}; }

}  // namespace tutti::hlo
