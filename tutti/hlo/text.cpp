// A program as text: https://openxla.org/stablehlo/spec, in the short form of each instruction
// where there is one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "tutti/hlo/checks.h"
#include "tutti/hlo/instruction.h"
#include "tutti/hlo/program.h"
#include "tutti/hlo/text_repeated.h"
#include "tutti/hlo/text_words.h"

namespace tutti::hlo {
namespace {

// Which instructions make the results; arguments are always there.
std::vector<bool> needed_of(const Program& program) {
  std::vector<bool> needed(size_t(program.num_instructions()));
  for (const Program::Result& result : program.results()) needed[size_t(result.number)] = true;
  for (size_t number = needed.size(); number-- > 0;)
    if (needed[number])
      for (const int operand : program.instruction(int(number)).operands)
        needed[size_t(operand)] = true;
  return needed;
}

class Writer {
 public:
  explicit Writer(const Program& program)
      : program_(program), names_(size_t(program.num_instructions())) {}

  std::string module_text(int64_t times);

 private:
  std::string function(std::string_view signature);
  std::string arguments(bool aliases);
  std::string result_types() const;
  void write(int number);
  // What stands after "=".
  std::string right_side(const Instruction& i);
  std::string shape_right_side(const Instruction& i);
  std::string linear_right_side(const Instruction& i);
  std::string erf_right_side(const Instruction& i);

  // A line of its own; the name of what it makes.
  std::string line(std::string_view right);
  std::string constant_line(const Type& type, double number);

  const Type& type(const Instruction& i, size_t which = 0) const {
    return program_.instruction(i.operands[which]).type;
  }
  const std::string& name(const Instruction& i, size_t which = 0) const {
    return names_[size_t(i.operands[which])];
  }
  std::string names(const Instruction& i) const;
  // ": (tensor<2xf32>) -> tensor<f32>"; with a scalar that the result starts from.
  std::string types(const Instruction& i, bool start = false) const;

  const Program& program_;
  std::vector<std::string> names_;  // by instruction
  std::string text_, comment_;      // the comment printed last
  int lines_ = 0;
};

std::string Writer::line(std::string_view right) {
  std::string name = fmt::format("%{}", lines_++);
  text_ += fmt::format("    {} = {}\n", name, right);
  return name;
}

std::string Writer::constant_line(const Type& type, double number) {
  return line(constant_words(type, number));
}

std::string Writer::names(const Instruction& i) const {
  std::vector<std::string_view> names;
  for (size_t k = 0; k < i.operands.size(); ++k) names.push_back(name(i, k));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string Writer::types(const Instruction& i, bool start) const {
  std::vector<std::string> types;
  for (size_t k = 0; k < i.operands.size(); ++k) types.push_back(to_string(type(i, k)));
  if (start) types.push_back(to_string({i.type.dtype, {}}));
  return fmt::format(": ({}) -> {}", fmt::join(types, ", "), to_string(i.type));
}

std::string Writer::right_side(const Instruction& i) {
  const std::string result = to_string(i.type);
  if (const std::string_view elementwise = elementwise_name(i.op); !elementwise.empty()) {
    const bool with_number = i.op == Op::power || i.op == Op::shift_left || i.op == Op::shift_right;
    const std::string number = with_number ? ", " + constant_line(i.type, i.number) : "";
    return fmt::format("stablehlo.{} {}{} : {}", elementwise, names(i), number, result);
  }
  switch (i.op) {
    case Op::constant: return constant_words(i.type, i.number);
    case Op::iota: return fmt::format("stablehlo.iota dim = {} : {}", i.dimensions[0], result);
    case Op::replica_number: return fmt::format("stablehlo.replica_id : {}", result);
    case Op::erf: return erf_right_side(i);
    case Op::compare:
      return fmt::format("stablehlo.compare {}, {}, {} {}", comparison_name(i.how), names(i),
                         comparison_kind(type(i).dtype), types(i));
    case Op::select:
      return fmt::format("stablehlo.select {} : {}, {}", names(i), to_string(type(i)), result);
    case Op::convert: return fmt::format("stablehlo.convert {} {}", name(i), types(i));
    default: break;
  }
  return i.op < Op::reduce_sum ? shape_right_side(i) : linear_right_side(i);
}

std::string Writer::shape_right_side(const Instruction& i) {
  const std::string dims = words_of(i.dimensions);
  switch (i.op) {
    case Op::broadcast:
      return fmt::format("stablehlo.broadcast_in_dim {}, dims = {} {}", name(i), dims, types(i));
    case Op::reshape: return fmt::format("stablehlo.reshape {} {}", name(i), types(i));
    case Op::transpose:
      return fmt::format("stablehlo.transpose {}, dims = {} {}", name(i), dims, types(i));
    case Op::slice: {
      std::vector<std::string> ranges;
      for (size_t k = 0; k < i.begin.size(); ++k)
        ranges.push_back(fmt::format("{}:{}:{}", i.begin[k], i.end[k], i.step[k]));
      return fmt::format("stablehlo.slice {} [{}] {}", name(i), fmt::join(ranges, ", "), types(i));
    }
    case Op::pad: {
      const std::string with = constant_line({i.type.dtype, {}}, i.number);
      return fmt::format("stablehlo.pad {}, {}, low = {}, high = {}, interior = {} {}", name(i),
                         with, words_of(i.begin), words_of(i.end), words_of(i.step),
                         types(i, true));
    }
    case Op::concatenate:
      return fmt::format("stablehlo.concatenate {}, dim = {} {}", names(i), i.dimensions[0],
                         types(i));
    default:  // reverse
      return fmt::format("stablehlo.reverse {}, dims = {} : {}", name(i), dims, to_string(i.type));
  }
}

std::string Writer::linear_right_side(const Instruction& i) {
  const DType dtype = i.type.dtype;
  const auto start = [&](double number) { return constant_line({dtype, {}}, number); };
  switch (i.op) {
    case Op::reduce_sum:
    case Op::reduce_max: {
      const bool sum = i.op == Op::reduce_sum;
      return fmt::format(
          "stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = {} {}", name(i),
          start(sum ? 0 : lowest(dtype)), sum ? "add" : "maximum", words_of(i.dimensions),
          types(i, true));
    }
    case Op::dot:
      return fmt::format("stablehlo.dot_general {}, {} {}", names(i),
                         dot_words(i.dot, program_.instruction(i.operands[0]).type.dtype),
                         types(i));
    case Op::convolution:
      return fmt::format(
          "stablehlo.convolution({}) {} {}", names(i),
          convolution_words(i.window, program_.instruction(i.operands[0]).type.dtype), types(i));
    case Op::window_max:
    case Op::window_sum: {
      const bool sum = i.op == Op::window_sum;
      return fmt::format("\"stablehlo.reduce_window\"({}, {}) {} ({}) {}", name(i),
                         start(sum ? 0 : lowest(dtype)), window_words(i.window),
                         block(sum ? "add" : "maximum", dtype), types(i, true));
    }
    case Op::window_max_gradient:
      return fmt::format("\"stablehlo.select_and_scatter\"({}, {}) {} ({}, {}) {}", names(i),
                         start(0), window_words(i.window), first_is_largest(dtype),
                         block("add", dtype), types(i, true));
    case Op::take_rows:
      return fmt::format("\"stablehlo.gather\"({}) {} {}", names(i),
                         taken_rows_words(type(i, 1).shape.size(), i.type.shape.back()), types(i));
    case Op::add_rows:
      return fmt::format("\"stablehlo.scatter\"({}, {}, {}) {} ({}) : ({}, {}, {}) -> {}",
                         constant_line(i.type, 0), name(i, 1), name(i, 0),
                         added_rows_words(type(i, 1).shape.size()), block("add", dtype),
                         to_string(i.type), to_string(type(i, 1)), to_string(type(i, 0)),
                         to_string(i.type));
    default:  // all_reduce
      return fmt::format("\"stablehlo.all_reduce\"({}) {} ({}) {}", name(i),
                         replicas_words(program_.replicas()), block("add", dtype), types(i));
  }
}

// sign(x) (1 - (a1 t + a2 t^2 + ... + a5 t^5) exp(-x^2)), t = 1 / (1 + p |x|).
std::string Writer::erf_right_side(const Instruction& i) {
  constexpr std::array kA{1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592};
  constexpr double kP = 0.3275911;
  const std::string result = to_string(i.type);
  const auto unary = [&](std::string_view operation, std::string_view a) {
    return line(fmt::format("stablehlo.{} {} : {}", operation, a, result));
  };
  const auto binary = [&](std::string_view operation, std::string_view a, std::string_view b) {
    return line(fmt::format("stablehlo.{} {}, {} : {}", operation, a, b, result));
  };
  // A line after the other: in a call's arguments their order would be the compiler's choice.
  const std::string one = constant_line(i.type, 1);
  const std::string p = constant_line(i.type, kP);
  const std::string size = unary("abs", name(i));
  const std::string scaled = binary("multiply", size, p);
  const std::string t = binary("divide", one, binary("add", scaled, one));
  std::string sum = constant_line(i.type, kA[0]);
  for (size_t k = 1; k < kA.size(); ++k) {
    const std::string product = binary("multiply", sum, t);
    sum = binary("add", product, constant_line(i.type, kA[k]));
  }
  const std::string square = binary("multiply", name(i), name(i));
  const std::string falling = unary("exponential", unary("negate", square));
  const std::string polynomial = binary("multiply", sum, t);
  const std::string rest = binary("subtract", one, binary("multiply", polynomial, falling));
  return fmt::format("stablehlo.multiply {}, {} : {}", unary("sign", name(i)), rest, result);
}

void Writer::write(int number) {
  const Instruction& i = program_.instruction(number);
  std::string& name_here = names_[size_t(number)];
  if (i.op == Op::stop_gradient) {
    name_here = name(i);
    return;
  }
  if (i.comment != comment_) {
    comment_ = i.comment;
    if (!comment_.empty()) text_ += fmt::format("    // {}\n", flat(comment_));
  }
  name_here = line(right_side(i));
}

std::string Writer::arguments(bool aliases) {
  std::set<std::string> taken;
  std::vector<std::string> words;
  for (const int number : program_.arguments()) {
    const Instruction& i = program_.instruction(number);
    const std::string base = identifier(i.name);
    std::string own = base;
    for (int k = 2; !taken.insert(own).second; ++k) own = fmt::format("{}_{}", base, k);
    names_[size_t(number)] = "%" + own;
    const std::string becomes = i.becomes < 0 || !aliases
                                    ? ""
                                    : fmt::format(" {{tf.aliasing_output = {} : i32}}", i.becomes);
    words.push_back(fmt::format("\n      %{}: {}{}", own, to_string(i.type), becomes));
  }
  return fmt::format("{}", fmt::join(words, ","));
}

// One a line, with its name.
std::string Writer::result_types() const {
  std::string text;
  const auto& results = program_.results();
  for (size_t k = 0; k < results.size(); ++k)
    text +=
        fmt::format("\n      {}{}  // {}", to_string(program_.instruction(results[k].number).type),
                    k + 1 < results.size() ? "," : "", flat(results[k].name));
  return text;
}

std::string Writer::module_text(int64_t times) {
  const std::string functions =
      times == 1 ? function("public @main") : function("private @pass") + repeated(program_, times);
  return fmt::format(
      "module @{} attributes {{mhlo.num_replicas = {} : i32, mhlo.num_partitions = 1 : i32}} {{\n"
      "{}}}\n",
      identifier(program_.name()), program_.replicas(), functions);
}

std::string Writer::function(std::string_view signature) {
  text_ = fmt::format("  func.func {}({}\n  ) -> ({}\n  ) {{\n", signature,
                      arguments(/*aliases=*/signature.starts_with("public")), result_types());
  const std::vector<bool> needed = needed_of(program_);
  for (size_t number = 0; number < needed.size(); ++number)
    if (needed[number] && names_[number].empty()) write(int(number));
  std::vector<std::string> names, types;
  for (const Program::Result& result : program_.results()) {
    names.push_back(names_[size_t(result.number)]);
    types.push_back(to_string(program_.instruction(result.number).type));
  }
  text_ += fmt::format("    return {}{}{}\n  }}\n", fmt::join(names, ", "),
                       names.empty() ? "" : " : ", fmt::join(types, ", "));
  return std::move(text_);
}

}  // namespace

std::string Program::text(int64_t times) const {
  if (times < 1) refuse("Program::text", fmt::format("{} passes", times), "1 or more");
  return Writer(*this).module_text(times);
}

}  // namespace tutti::hlo
