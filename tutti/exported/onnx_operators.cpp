// Arithmetic and shapes of aten as nodes of ONNX.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/exported/detail/onnx_call.h"

namespace tutti::exported::detail {
namespace {

using onnx::Value;
using pt2::Element;
using Wholes = std::vector<int64_t>;

bool is_floating(Element element) {
  return element == Element::float16 || element == Element::float32 ||
         element == Element::float64 || element == Element::bfloat16;
}

template <size_t N>
struct Word {
  constexpr Word(const char (&text)[N]) { std::copy_n(text, N, value); }  // NOLINT
  char value[N]{};
};

// "Relu" of self.
template <Word op>
void unary(const OnnxCall& call) {
  call.give(call.add(op.value, {call.operand("self", call.result_element())}));
}

// self op alpha other, of the type of what comes out.
template <Word op>
void binary(const OnnxCall& call) {
  const Element element = call.result_element();
  if (call.has("rounding_mode")) throw CannotSay{"it rounds"};
  Value other = call.operand("other", element);
  if (const double alpha = call.real("alpha", 1); alpha != 1)
    other = call.add("Mul", {other, call.scalar(alpha, element)});
  call.give(call.add(op.value, {call.operand("self", element), other}));
}

template <Word op>
void compare(const OnnxCall& call) {
  Element element = call.meta().element;
  const auto* other = call.find("other");
  if (element == Element::boolean) throw CannotSay{"it compares truth values"};
  if (other != nullptr && std::holds_alternative<pt2::ValueName>(other->value) &&
      call.meta("other").element != element)
    throw CannotSay{"it compares two types"};
  if (other != nullptr && std::holds_alternative<double>(other->value) && !is_floating(element))
    element = Element::float32;
  call.give(call.add(op.value, {call.operand("self", element), call.operand("other", element)}));
}

void gelu(const OnnxCall& call) {
  const Element element = call.result_element();
  const Value x = call.tensor();
  const auto number = [&](double value) { return call.scalar(value, element); };
  Value inside = call.add("Mul", {x, number(1 / std::numbers::sqrt2)});
  const bool by_tanh = call.text("approximate", "none") == "tanh";
  if (by_tanh) {
    const Value cube = call.add("Mul", {call.add("Mul", {x, x}), x});
    const Value sum = call.add("Add", {x, call.add("Mul", {cube, number(0.044715)})});
    inside = call.add("Mul", {sum, number(std::sqrt(2 / std::numbers::pi))});
  }
  const Value share = call.add("Add", {call.add(by_tanh ? "Tanh" : "Erf", {inside}), number(1)});
  call.give(call.add("Mul", {call.add("Mul", {x, share}), number(0.5)}));
}

void clip(const OnnxCall& call, double least, double most) {
  const Element element = call.result_element();
  call.give(
      call.add("Clip", {call.tensor(), call.scalar(least, element), call.scalar(most, element)}));
}

void clamp(const OnnxCall& call) {
  const Element element = call.result_element();
  const auto end = [&](const char* name) {
    return call.has(name) ? call.operand(name, element) : Value{""};
  };
  call.give(call.add("Clip", {call.tensor(), end("min"), end("max")}));
}

void softmax(const OnnxCall& call, const char* op) {
  call.give(
      call.add(op, {call.operand("self", call.result_element())}, {{"axis", call.whole("dim")}}));
}

// Over the axes of "dim", or all.
void reduce(const OnnxCall& call, const char* op) {
  std::vector<Value> inputs{call.operand("self", call.result_element())};
  const Wholes axes = call.wholes("dim", Wholes{});
  if (!axes.empty()) inputs.push_back(call.constant(axes));
  call.give(call.add(op, inputs, {{"keepdims", int64_t{call.truth("keepdim", false)}}}));
}

void norm(const OnnxCall& call) {
  if (call.real(call.has("ord") ? "ord" : "p", 2) != 2) throw CannotSay{"it is not the length"};
  reduce(call, "ReduceL2");
}

void as_it_is(const OnnxCall& call) { call.give(call.operand("self", call.result_element())); }

void flatten(const OnnxCall& call) {
  const int64_t from = call.axis("start_dim", 0), to = call.axis("end_dim", -1);
  const Value x = call.tensor();
  const Value all = call.add("Shape", {x});
  const auto sides = [&](int64_t begin, int64_t end) {
    return call.add("Slice", {all, call.constant({begin}), call.constant({end})});
  };
  const Value shape =
      call.add("Concat", {sides(0, from), call.constant({-1}), sides(to + 1, call.rank())},
               {{"axis", int64_t{0}}});
  call.give(call.add("Reshape", {x, shape}));
}

void reshape(const OnnxCall& call) {
  const Value shape = call.sizes(call.has("size") ? "size" : "shape");
  call.give(call.add("Reshape", {call.tensor(), shape}, {{"allowzero", int64_t{1}}}));
}

void permute(const OnnxCall& call) {
  Wholes order = call.wholes("dims");
  for (int64_t& axis : order)
    if (axis < 0) axis += call.rank();
  call.give(call.add("Transpose", {call.tensor()}, {{"perm", order}}));
}

void swap_axes(const OnnxCall& call, int64_t a, int64_t b) {
  Wholes order(static_cast<size_t>(call.rank()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::swap(order.at(static_cast<size_t>(a)), order.at(static_cast<size_t>(b)));
  call.give(call.add("Transpose", {call.tensor()}, {{"perm", order}}));
}

void cat(const OnnxCall& call) {
  call.give(call.add("Concat", call.tensors("tensors"), {{"axis", call.whole("dim", 0)}}));
}

void stack(const OnnxCall& call) {
  const int64_t axis = call.whole("dim", 0);
  std::vector<Value> rows;
  for (const Value& one : call.tensors("tensors"))
    rows.push_back(call.add("Unsqueeze", {one, call.constant({axis})}));
  call.give(call.add("Concat", rows, {{"axis", axis}}));
}

// Into the parts that the export saw.
void split(const OnnxCall& call) {
  const int64_t axis = call.axis("dim", 0);
  Wholes sizes;
  for (const pt2::NodeOutput& output : call.node().outputs)
    for (const std::string& name : output.names) {
      const auto found = call.walk().graph.tensors.find(name);
      if (found == call.walk().graph.tensors.end())
        throw CannotSay{"parts that nobody wants have no size"};
      const pt2::Size& size = found->second.sizes.at(static_cast<size_t>(axis));
      if (!size.is_known()) throw CannotSay{"its parts are known only when it runs"};
      sizes.push_back(size.value);
    }
  call.give_list(call.program().nodes("Split", {call.tensor(), call.constant(sizes)},
                                      static_cast<int>(sizes.size()), {{"axis", axis}}));
}

void select(const OnnxCall& call) {
  const Array index = Array::zeros(DType::int64, {});
  index.as<int64_t>()[0] = call.whole("index");
  call.give(call.add("Gather", {call.tensor(), call.program().constant(index)},
                     {{"axis", call.axis("dim")}}));
}

void slice(const OnnxCall& call) {
  const auto* begin = call.find("start");
  const auto* end = call.find("end");
  const auto at = [&](const pt2::Argument* argument, int64_t otherwise) {
    return argument == nullptr ? call.constant({otherwise}) : call.number(*argument).value;
  };
  call.give(call.add(
      "Slice", {call.tensor(), at(begin, 0), at(end, INT64_MAX),
                call.constant({call.axis("dim", 0)}), call.constant({call.whole("step", 1)})}));
}

void unsqueeze(const OnnxCall& call) {
  call.give(call.add("Unsqueeze", {call.tensor(), call.constant({call.whole("dim")})}));
}

void squeeze(const OnnxCall& call) {
  Wholes axes = call.wholes("dim");
  std::erase_if(axes, [&](int64_t axis) {
    const int64_t from_front = axis < 0 ? axis + call.rank() : axis;
    return call.side(from_front) != 1;
  });
  if (axes.empty()) return call.give(call.tensor());  // Squeeze of no axes is one of all
  call.give(call.add("Squeeze", {call.tensor(), call.constant(axes)}));
}

void expand(const OnnxCall& call) {
  // -1: as it is, which 1 is by the rules of broadcasting.
  const auto& list = std::get<pt2::List>(call.find("size")->value);
  std::vector<Value> sides;
  for (const pt2::Argument& side : list) {
    const OnnxNumber number = call.number(side);
    sides.push_back(number.known == -1 ? call.constant({1}) : number.value);
  }
  call.give(call.add("Expand", {call.tensor(), call.add("Concat", sides, {{"axis", int64_t{0}}})}));
}

void filled(const OnnxCall& call, double number) {
  call.give(call.add("Expand", {call.scalar(number, call.result_element()), call.sizes("size")}));
}

void arange(const OnnxCall& call) {
  const auto number = [&](const char* name, int64_t otherwise) {
    const auto* found = call.find(name);
    if (found == nullptr) return OnnxNumber{otherwise, call.constant({otherwise})};
    return call.number(*found);
  };
  const OnnxNumber begin = number("start", 0), end = number("end", 0), step = number("step", 1);
  const auto scalar = [&](const OnnxNumber& of) {
    return call.add("Squeeze", {of.value, call.constant({0})});
  };
  const Value range = call.add("Range", {scalar(begin), scalar(end), scalar(step)});
  if (begin.known == 0 && step.known)
    call.walk().strides[call.node().outputs[0].names[0]] = *step.known;
  const Element element = call.result_element();
  call.give(element == Element::int64 ? range : call.cast(range, element));
}

// x[:, a, b]: indices of the last axes, each a row.
void index(const OnnxCall& call) {
  const auto& list = std::get<pt2::List>(call.find("indices")->value);
  const int64_t rank = call.rank();
  size_t first = 0;
  while (first < list.size() && std::holds_alternative<pt2::None>(list[first].value)) ++first;
  if (first == list.size() || (list.size() != static_cast<size_t>(rank) && list.size() - first > 1))
    throw CannotSay{"it is not the last axes that are indexed"};
  Value at{""};
  Wholes shape(first, 0);
  for (size_t i = first; i < list.size(); ++i) {
    const auto* name = std::get_if<pt2::ValueName>(&list[i].value);
    if (name == nullptr) throw CannotSay{"an axis between indexed ones is not"};
    const pt2::TensorMeta& meta = call.walk().graph.tensors.at(name->name);
    if (meta.element != Element::int64 || (list.size() - first > 1 && meta.sizes.size() != 1))
      throw CannotSay{"it is indexed by truth values, or by several tables"};
    const Value one = std::get<Value>(call.walk().items.at(name->name));
    const Value side = call.constant({i == first ? 1 : call.side(static_cast<int64_t>(i))});
    if (i == first) {
      at = one;  // from the end, too
      continue;
    }
    const Value is_from_end = call.add("Less", {one, call.constant(Wholes{0})});
    const Value wrapped = call.add("Where", {is_from_end, call.add("Add", {one, side}), one});
    at = call.add("Add", {call.add("Mul", {at, side}), wrapped});
  }
  Value x = call.tensor();
  if (list.size() - first > 1) {
    shape.push_back(-1);
    x = call.add("Reshape", {x, call.constant(shape)});
  }
  call.give(call.add("Gather", {x, at}, {{"axis", static_cast<int64_t>(first)}}));
}

void masked_fill(const OnnxCall& call) {
  const Element element = call.result_element();
  call.give(
      call.add("Where", {call.tensor("mask"), call.operand("value", element), call.tensor()}));
}

void where(const OnnxCall& call) {
  const Element element = call.result_element();
  call.give(call.add("Where", {call.tensor("condition"), call.operand("self", element),
                               call.operand("other", element)}));
}

void upsample_nearest(const OnnxCall& call) {
  const char* name = call.has("input") ? "input" : "self";
  if (!call.has("scale_factors")) throw CannotSay{"its size is given, not its factors"};
  const auto& factors = std::get<pt2::List>(call.find("scale_factors")->value);
  const Array scales = Array::zeros(DType::float32, {4});
  auto to = scales.as<float>();
  std::ranges::fill(to, 1.0F);
  for (size_t i = 0; i < 2; ++i)
    to[2 + i] = static_cast<float>(std::get<double>(factors.at(i).value));
  call.give(call.add("Resize", {call.tensor(name), {""}, call.program().constant(scales)},
                     {{"mode", "nearest"},
                      {"coordinate_transformation_mode", "asymmetric"},
                      {"nearest_mode", "floor"}}));
}

void sym_size(const OnnxCall& call) {
  const int64_t axis = call.axis("dim");
  const pt2::Size& size = call.meta().sizes.at(static_cast<size_t>(axis));
  if (size.is_known()) return call.give_number({size.value, call.constant({size.value})});
  call.give_number({std::nullopt, call.size_of(call.tensor(), axis)});
}

constexpr OnnxOperator kOnnxOperators[] = {
    {"relu", unary<"Relu">},
    {"tanh", unary<"Tanh">},
    {"sigmoid", unary<"Sigmoid">},
    {"erf", unary<"Erf">},
    {"exp", unary<"Exp">},
    {"log", unary<"Log">},
    {"sqrt", unary<"Sqrt">},
    {"neg", unary<"Neg">},
    {"abs", unary<"Abs">},
    {"sin", unary<"Sin">},
    {"cos", unary<"Cos">},
    {"hardswish", unary<"HardSwish">},
    {"reciprocal", unary<"Reciprocal">},
    {"logical_not", unary<"Not">},
    {"add", binary<"Add">},
    {"sub", binary<"Sub">},
    {"mul", binary<"Mul">},
    {"div", binary<"Div">},
    {"maximum", binary<"Max">},
    {"minimum", binary<"Min">},
    {"matmul", [](const OnnxCall& c) { c.give(c.add("MatMul", {c.tensor(), c.tensor("other")})); }},
    {"bmm", [](const OnnxCall& c) { c.give(c.add("MatMul", {c.tensor(), c.tensor("mat2")})); }},
    {"mm", [](const OnnxCall& c) { c.give(c.add("MatMul", {c.tensor(), c.tensor("mat2")})); }},
    {"eq", compare<"Equal">},
    {"lt", compare<"Less">},
    {"le", compare<"LessOrEqual">},
    {"gt", compare<"Greater">},
    {"ge", compare<"GreaterOrEqual">},
    {"gelu", gelu},
    {"silu",
     [](const OnnxCall& c) { c.give(c.add("Mul", {c.tensor(), c.add("Sigmoid", {c.tensor()})})); }},
    {"rsqrt",
     [](const OnnxCall& c) { c.give(c.add("Reciprocal", {c.add("Sqrt", {c.tensor()})})); }},
    {"pow",
     [](const OnnxCall& c) {
       const Element element = c.result_element();
       c.give(c.add("Pow", {c.operand("self", element), c.operand("exponent", element)}));
     }},
    {"leaky_relu",
     [](const OnnxCall& c) {
       const auto slope = static_cast<float>(c.real("negative_slope", 0.01));
       c.give(c.add("LeakyRelu", {c.tensor()}, {{"alpha", slope}}));
     }},
    {"hardsigmoid",
     [](const OnnxCall& c) {
       c.give(c.add("HardSigmoid", {c.tensor()}, {{"alpha", 1.0F / 6}, {"beta", 0.5F}}));
     }},
    {"hardtanh", [](const OnnxCall& c) { clip(c, c.real("min_val", -1), c.real("max_val", 1)); }},
    {"relu6", [](const OnnxCall& c) { clip(c, 0, 6); }},
    {"clamp", clamp},
    {"softmax", [](const OnnxCall& c) { softmax(c, "Softmax"); }},
    {"log_softmax", [](const OnnxCall& c) { softmax(c, "LogSoftmax"); }},
    {"mean", [](const OnnxCall& c) { reduce(c, "ReduceMean"); }},
    {"sum", [](const OnnxCall& c) { reduce(c, "ReduceSum"); }},
    {"amax", [](const OnnxCall& c) { reduce(c, "ReduceMax"); }},
    {"norm", norm},
    {"linalg_vector_norm", norm},
    {"clone", as_it_is},
    {"_to_copy", as_it_is},
    {"to", as_it_is, true},
    {"contiguous", as_it_is, true},
    {"detach", as_it_is, true},
    {"alias", as_it_is, true},
    {"lift_fresh_copy", as_it_is},
    {"flatten", flatten, true},
    {"view", reshape, true},
    {"reshape", reshape, true},
    {"_unsafe_view", reshape, true},
    {"permute", permute, true},
    {"transpose", [](const OnnxCall& c) { swap_axes(c, c.axis("dim0"), c.axis("dim1")); }, true},
    {"t", [](const OnnxCall& c) { swap_axes(c, 0, c.rank() - 1); }, true},
    {"cat", cat},
    {"stack", stack},
    {"split", split, true},
    {"split_with_sizes", split, true},
    {"chunk", split, true},
    {"select", select, true},
    {"slice", slice, true},
    {"unsqueeze", unsqueeze, true},
    {"squeeze", squeeze, true},
    {"expand", expand, true},
    {"zeros", [](const OnnxCall& c) { filled(c, 0); }},
    {"ones", [](const OnnxCall& c) { filled(c, 1); }},
    {"full", [](const OnnxCall& c) { filled(c, c.real("fill_value")); }},
    {"arange", arange},
    {"index", index},
    {"masked_fill", masked_fill},
    {"where", where},
    {"upsample_nearest2d", upsample_nearest},
    {"sym_size", sym_size},
    {"_assert_tensor_metadata", [](const OnnxCall&) {}},
    {"_assert_scalar", [](const OnnxCall&) {}},
    {"sym_constrain_range_for_size", [](const OnnxCall&) {}},
};

// Python's of two sizes.
using OfSizes = int64_t (*)(int64_t, int64_t);

void of_sizes(const OnnxCall& call, const char* op, OfSizes known) {
  const OnnxNumber a = call.number(call.node().inputs.at(0).argument);
  const OnnxNumber b = call.number(call.node().inputs.at(1).argument);
  if (a.known && b.known) {
    const int64_t value = known(*a.known, *b.known);
    return call.give_number({value, call.constant({value})});
  }
  call.give_number({std::nullopt, call.add(op, {a.value, b.value})});
}

int64_t floor_quotient(int64_t a, int64_t b) {
  if (b <= 0 || a < 0) throw CannotSay{"a size is divided by what is no size"};
  return a / b;
}

int64_t wrapped(uint64_t number) { return static_cast<int64_t>(number); }

}  // namespace

const OnnxOperator* onnx_operator(std::string_view name) {
  const auto find = [&](auto rows) -> const OnnxOperator* {
    const auto row = std::ranges::find(rows, name, &OnnxOperator::name);
    return row == rows.end() ? nullptr : &*row;
  };
  const auto* layer = find(onnx_layers());
  return layer != nullptr ? layer : find(std::span<const OnnxOperator>(kOnnxOperators));
}

OnnxRule onnx_number_rule(std::string_view target) {
  if (target == "_operator.add")
    return [](const OnnxCall& call) {
      of_sizes(call, "Add",
               [](int64_t a, int64_t b) { return wrapped(uint64_t(a) + uint64_t(b)); });
    };
  if (target == "_operator.sub")
    return [](const OnnxCall& call) {
      of_sizes(call, "Sub",
               [](int64_t a, int64_t b) { return wrapped(uint64_t(a) - uint64_t(b)); });
    };
  if (target == "_operator.mul")
    return [](const OnnxCall& call) {
      of_sizes(call, "Mul",
               [](int64_t a, int64_t b) { return wrapped(uint64_t(a) * uint64_t(b)); });
    };
  if (target == "_operator.floordiv")
    return [](const OnnxCall& call) { of_sizes(call, "Div", floor_quotient); };
  return nullptr;
}

}  // namespace tutti::exported::detail
