/// A program of StableHLO under construction: values, and what makes each of them.
///
///   hlo::Program program("step");
///   auto x = program.argument({DType::float32, {64, 784}}, "x");
///   auto w = program.argument({DType::float32, {784, 10}}, "w");
///   auto y = hlo::dot(x, w);
///   auto loss = hlo::reduce_sum(y * y, {0, 1});
///   auto grads = hlo::gradients(loss, std::vector{w});      // gradients.h
///   program.result(loss, "loss");
///   program.result(grads[0], "w.grad");
///   std::string text = program.text();                        // for pjrt::Client::compile
///
/// Operators (ops.h) work on values of one program, check types and shapes when they are applied
/// (UsageError that says the operator, what it got and what it expects), and add one instruction
/// each. https://openxla.org/stablehlo/spec says what each computes.
/// Thread rule: a Program and its values belong to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::hlo {

using Shape = std::vector<int64_t>;

struct Type {
  DType dtype = DType::float32;  ///< float32, bfloat16, boolean, int32, uint32, int64, uint64
  Shape shape;                   ///< empty: a scalar
  bool operator==(const Type&) const = default;
};

/// "tensor<64x10xf32>", as StableHLO writes it.
std::string to_string(const Type& type);

int64_t num_elements(const Type& type);

class Program;
struct Instruction;

/// What an instruction makes. Valid as long as its program.
class Value {
 public:
  const Type& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  Program& program() const { return *program_; }
  int number() const { return number_; }  ///< of its instruction, in the order they were made

 private:
  friend class Program;
  Value(Program& program, int number) : program_(&program), number_(number) {}
  Program* program_;
  int number_;
};

class Program {
 public:
  explicit Program(std::string name);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// main()'s next argument.
  Value argument(Type type, std::string name);

  /// main()'s next result; its number.
  int result(Value value, std::string name);

  /// The memory of an argument becomes that of a result of its type: the device needs room for one
  /// of them, and whoever runs the program has the argument no more.
  void give_away(Value argument, int result);

  /// Of a program that is repeated, each pass has this argument of its own: text(times) takes
  /// [times, ...].
  void comes_anew(Value argument);

  /// What follows is about this: a comment in the text, "conv2d_1: conv2d".
  void comment(std::string words);
  const std::string& comment() const { return comment_; }

  /// As so many replicas run it, each on a device of its own; 1 unless told. What all_reduce() adds
  /// over, so it is set before that is used.
  void set_replicas(int replicas);
  int replicas() const { return replicas_; }

  /// The module as text that PJRT's plugins compile, with what no result needs left out.
  ///
  /// times  >= 1: passes, one after the other, of one run. Arguments that are given away go from
  ///        pass to pass, others are the same in each but for those that come anew; results that
  ///        are nobody's memory are of all passes: [times, ...]. 1: as it stands, without that
  ///        dimension.
  std::string text(int64_t times = 1) const;

  struct Result {
    int number;  ///< of its instruction
    std::string name;
  };
  const std::string& name() const { return name_; }
  int num_arguments() const { return int(arguments_.size()); }
  int num_results() const { return int(results_.size()); }
  const std::vector<int>& arguments() const { return arguments_; }  ///< their instructions
  const std::vector<Result>& results() const { return results_; }

  /// Adds an instruction: what ops.h is made of.
  Value add(Instruction instruction);
  /// What that instruction makes.
  Value value(int number);
  const Instruction& instruction(int number) const { return *instructions_[size_t(number)]; }
  int num_instructions() const { return int(instructions_.size()); }

 private:
  std::string name_;
  int replicas_ = 1;
  std::vector<std::unique_ptr<Instruction>> instructions_;  // references to them stay good
  std::vector<int> arguments_;
  std::vector<Result> results_;
  std::string comment_;
};

}  // namespace tutti::hlo
