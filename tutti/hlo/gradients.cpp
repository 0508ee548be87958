#include "tutti/hlo/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "tutti/base/detail/check.h"
#include "tutti/hlo/checks.h"
#include "tutti/hlo/gradient_rules.h"
#include "tutti/hlo/ops.h"

namespace tutti::hlo {
namespace {

// Which instructions up to the loss's depend on the values, and let a gradient through.
std::vector<bool> on_the_way(Value loss, std::span<const Value> values) {
  const Program& program = loss.program();
  std::vector<bool> depends(size_t(program.num_instructions()));
  for (const Value value : values) depends[size_t(value.number())] = true;
  for (int number = 0; number <= loss.number(); ++number) {
    const Instruction& i = program.instruction(number);
    if (is_floating(i.type.dtype) && i.op != Op::stop_gradient &&
        std::ranges::any_of(i.operands, [&](int operand) { return depends[size_t(operand)]; }))
      depends[size_t(number)] = true;
  }
  return depends;
}

[[noreturn]] void refuse_to_go_through(std::string_view what) {
  refuse("gradients", fmt::format("{} between the values and the loss", what),
         "instructions that have a rule");
}

Value gradient_of_operand(const BackwardStep& step, size_t which) {
  switch (step.i.op) {
    case Op::concatenate: return gradient_of_concatenate(step, which);
    case Op::reduce_max: return gradient_of_reduce_max(step);
    case Op::dot: return gradient_of_dot(step, which);
    case Op::convolution:
      if (step.i.window.layout != ConvolutionLayout::plain)
        refuse_to_go_through("a gradient of conv2d");
      return gradient_of_convolution(step, which);
    case Op::window_max: return gradient_of_window_max(step);
    case Op::window_max_gradient: refuse_to_go_through("a gradient of window_max");
    case Op::window_sum: return gradient_of_window_sum(step);
    case Op::take_rows: return gradient_of_take_rows(step);
    case Op::add_rows: return take_rows(step.incoming, step.operand(1));
    case Op::all_reduce: return all_reduce(step.incoming);
    default: break;
  }
  return step.i.op < Op::compare || step.i.op == Op::select ? gradient_of_elementwise(step, which)
                                                            : gradient_of_shape(step);
}

void check_arguments(Value loss, std::span<const Value> values) {
  if (loss.type() != Type{DType::float32, {}})
    refuse("gradients", fmt::format("a loss of {}", words_of({loss})), "a scalar of float32");
  for (const Value value : values) {
    require_same_program("gradients", loss, value);
    require_floating("gradients", value);
  }
}

}  // namespace

std::vector<Value> gradients(Value loss, std::span<const Value> values) {
  check_arguments(loss, values);
  Program& program = loss.program();
  const std::vector<bool> depends = on_the_way(loss, values);
  const std::string comment = program.comment();
  std::vector<std::optional<Value>> sums(depends.size());  // by instruction: what has come in
  if (depends[size_t(loss.number())]) sums[size_t(loss.number())] = constant(program, {}, 1);

  for (int number = loss.number(); number >= 0; --number) {
    if (!sums[size_t(number)]) continue;
    const BackwardStep step{program.instruction(number), program.value(number),
                            *sums[size_t(number)]};
    if (step.i.op == Op::stop_gradient) continue;
    program.comment(step.i.comment.empty() ? "" : "gradients of " + step.i.comment);
    for (size_t which = 0; which < step.i.operands.size(); ++which) {
      const auto operand = size_t(step.i.operands[which]);
      if (!depends[operand]) continue;
      const Value more = gradient_of_operand(step, which);
      TUTTI_CHECK(more.type() == step.operand(which).type(), "{} for {}", to_string(more.type()),
                  to_string(step.operand(which).type()));
      sums[operand] = sums[operand] ? *sums[operand] + more : more;
    }
  }

  program.comment(comment);
  std::vector<Value> gradients;
  for (const Value value : values) {
    const auto& sum = sums[size_t(value.number())];
    gradients.push_back(sum ? *sum : constant(program, value.type(), 0));
  }
  return gradients;
}

}  // namespace tutti::hlo
