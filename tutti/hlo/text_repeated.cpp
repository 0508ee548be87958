#include "tutti/hlo/text_repeated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "tutti/hlo/instruction.h"

namespace tutti::hlo {
namespace {

/// A while loop whose state is the number of the pass, every argument, and what results of all
/// passes have so far.
class Loop {
 public:
  Loop(const Program& program, int64_t times) : program_(program), times_(times) {
    for (const int number : program.arguments()) arguments_.push_back(&program.instruction(number));
    for (const Program::Result& result : program.results())
      results_.push_back({program.instruction(result.number).type, -1});
    for (size_t a = 0; a < arguments_.size(); ++a)
      if (arguments_[a]->becomes >= 0) results_[size_t(arguments_[a]->becomes)].argument = int(a);
  }

  std::string function() {
    text_ = "  func.func public @main(" + signature() + "  ) {\n";
    say("%begin = stablehlo.constant dense<0> : tensor<i32>");
    std::vector<std::string> state{"%i = %begin"}, types{"tensor<i32>"};
    for (size_t a = 0; a < arguments_.size(); ++a) {
      state.push_back(fmt::format("%a{} = %x{}", a, a));
      types.push_back(to_string(argument_type(a)));
    }
    for (const size_t r : collected()) {
      say("%c{0} = {1}", r, zero_words(collected_type(r)));
      state.push_back(fmt::format("%b{0} = %c{0}", r));
      types.push_back(to_string(collected_type(r)));
    }
    say("%end:{} = stablehlo.while({}) : {}", state.size(), fmt::join(state, ", "),
        fmt::join(types, ", "));
    say("cond {{");
    say("  %times = stablehlo.constant dense<{}> : tensor<i32>", times_);
    say("  %more = stablehlo.compare LT, %i, %times, SIGNED : (tensor<i32>, tensor<i32>) -> "
        "tensor<i1>");
    say("  stablehlo.return %more : tensor<i1>");
    say("}} do {{");
    pass(types);
    say("}}");
    give_back();
    return text_ + "  }\n";
  }

 private:
  struct Result {
    Type type;
    int argument;  ///< whose memory it is; -1: each pass has its own
  };

  template <class... T>
  void say(fmt::format_string<T...> words, T&&... values) {
    text_ += "    " + fmt::format(words, std::forward<T>(values)...) + "\n";
  }

  Type stacked(Type type) const {
    type.shape.insert(type.shape.begin(), times_);
    return type;
  }
  Type argument_type(size_t a) const {
    return arguments_[a]->anew ? stacked(arguments_[a]->type) : arguments_[a]->type;
  }
  Type collected_type(size_t r) const { return stacked(results_[r].type); }
  std::vector<size_t> collected() const {
    std::vector<size_t> all;
    for (size_t r = 0; r < results_.size(); ++r)
      if (results_[r].argument < 0) all.push_back(r);
    return all;
  }
  static std::string zero_words(const Type& type) {
    const bool floats = type.dtype == DType::float32 || type.dtype == DType::bfloat16;
    const char* const zero = type.dtype == DType::boolean ? "false" : floats ? "0.0" : "0";
    return fmt::format("stablehlo.constant dense<{}> : {}", zero, to_string(type));
  }

  std::string signature() const {
    std::vector<std::string> takes, gives;
    for (size_t a = 0; a < arguments_.size(); ++a)
      takes.push_back(fmt::format(
          "\n      %x{}: {}{}", a, to_string(argument_type(a)),
          arguments_[a]->becomes < 0
              ? ""
              : fmt::format(" {{tf.aliasing_output = {} : i32}}", arguments_[a]->becomes)));
    for (size_t r = 0; r < results_.size(); ++r)
      gives.push_back("\n      " +
                      to_string(results_[r].argument < 0 ? collected_type(r) : results_[r].type));
    return fmt::format("{}\n  ) -> ({}\n", fmt::join(takes, ","), fmt::join(gives, ","));
  }

  /// ", %i, %zero, %zero": where pass i is in a stack of so many dimensions.
  static std::string place(size_t dimensions) {
    std::string words = ", %i";
    for (size_t d = 1; d < dimensions; ++d) words += ", %zero";
    return words;
  }
  static std::string place_types(size_t dimensions) {
    std::string words;
    for (size_t d = 0; d < dimensions; ++d) words += ", tensor<i32>";
    return words;
  }

  void pass(const std::vector<std::string>& types) {
    say("  %zero = stablehlo.constant dense<0> : tensor<i32>");
    std::vector<std::string> given, given_types, result_types;
    for (size_t a = 0; a < arguments_.size(); ++a) {
      given.push_back(arguments_[a]->anew ? own(a) : fmt::format("%a{}", a));
      given_types.push_back(to_string(arguments_[a]->type));
    }
    for (const Result& result : results_) result_types.push_back(to_string(result.type));
    say("  %r:{} = func.call @pass({}) : ({}) -> ({})", results_.size(), fmt::join(given, ", "),
        fmt::join(given_types, ", "), fmt::join(result_types, ", "));
    say("  %one = stablehlo.constant dense<1> : tensor<i32>");
    say("  %next = stablehlo.add %i, %one : tensor<i32>");
    std::vector<std::string> after{"%next"};
    for (size_t a = 0; a < arguments_.size(); ++a)
      after.push_back(arguments_[a]->becomes < 0 ? fmt::format("%a{}", a)
                                                 : fmt::format("%r#{}", arguments_[a]->becomes));
    for (const size_t r : collected()) after.push_back(kept(r));
    say("  stablehlo.return {} : {}", fmt::join(after, ", "), fmt::join(types, ", "));
  }

  /// This pass's part of an argument.
  std::string own(size_t a) {
    Type one = arguments_[a]->type;
    one.shape.insert(one.shape.begin(), 1);
    const size_t dimensions = one.shape.size();
    say("  %s{0} = stablehlo.dynamic_slice %a{0}{1}, sizes = [{2}] : ({3}{4}) -> {5}", a,
        place(dimensions), fmt::join(one.shape, ", "), to_string(argument_type(a)),
        place_types(dimensions), to_string(one));
    say("  %o{0} = stablehlo.reshape %s{0} : ({1}) -> {2}", a, to_string(one),
        to_string(arguments_[a]->type));
    return fmt::format("%o{}", a);
  }

  /// A result among those of the passes before.
  std::string kept(size_t r) {
    Type one = results_[r].type;
    one.shape.insert(one.shape.begin(), 1);
    const size_t dimensions = one.shape.size();
    const std::string all = to_string(collected_type(r));
    say("  %p{0} = stablehlo.reshape %r#{0} : ({1}) -> {2}", r, to_string(results_[r].type),
        to_string(one));
    say("  %k{0} = stablehlo.dynamic_update_slice %b{0}, %p{0}{1} : ({2}, {3}{4}) -> {2}", r,
        place(dimensions), all, to_string(one), place_types(dimensions));
    return fmt::format("%k{}", r);
  }

  void give_back() {
    std::vector<std::string> given, types;
    size_t next = 1 + arguments_.size();  // in the loop's state
    for (size_t r = 0; r < results_.size(); ++r) {
      const bool own_memory = results_[r].argument >= 0;
      given.push_back(
          fmt::format("%end#{}", own_memory ? 1 + size_t(results_[r].argument) : next++));
      types.push_back(to_string(own_memory ? results_[r].type : collected_type(r)));
    }
    say("return {} : {}", fmt::join(given, ", "), fmt::join(types, ", "));
  }

  const Program& program_;
  const int64_t times_;
  std::vector<const Instruction*> arguments_;
  std::vector<Result> results_;
  std::string text_;
};

}  // namespace

std::string repeated(const Program& program, int64_t times) {
  return Loop(program, times).function();
}

}  // namespace tutti::hlo
