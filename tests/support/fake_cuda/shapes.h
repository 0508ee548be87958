/// What an operator's results look like: found by a rehearsal, the CPU's kernel on zeros of the
/// same shapes, once for each combination of shapes. So every operator whose shapes do not depend
/// on values can be queued, and strides are the CPU's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::test::fake_cuda {

struct Shape {
  bool defined = false;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

/// Of one return of an operator: a tensor, or a list of them.
struct ReturnShapes {
  bool is_list = false;
  std::vector<Shape> tensors;
};

struct Rehearsal {
  std::vector<ReturnShapes> returns;
  /// Arguments that are written and had no element: what the kernel makes of them.
  std::vector<std::pair<size_t, Shape>> resized;
};

struct WordsHash {
  size_t operator()(const std::vector<int64_t>& words) const noexcept;
};

/// What an operator's schema says, and what was rehearsed of it. Lives as long as the process.
struct Facts {
  explicit Facts(const c10::OperatorHandle& op);

  std::string name;                ///< "aten::mm.out"
  size_t arguments = 0;            ///< their number
  std::vector<bool> is_written;    ///< of each argument
  std::vector<size_t> outputs;     ///< the arguments that are outputs of an "out" variant
  std::vector<bool> value_counts;  ///< of each argument: shapes may depend on its value
  std::vector<int> same_as;        ///< of each return: the argument that it is, -1 for a new tensor
  int generator = -1;              ///< the argument that is one; -1: the operator draws nothing
  bool returns_tensors = true;     ///< and nothing else
  bool returns_view = false;
  bool shapes_depend_on_values = false;
  bool takes_indices = false;  ///< which are masks, or may be the host's
  /// Guarded by lock_of_all().
  mutable std::unordered_map<std::vector<int64_t>, std::shared_ptr<const Rehearsal>, WordsHash>
      rehearsals;
};

const Facts& facts_of(const c10::OperatorHandle& op);

/// Null where the kernel refuses zeros of these shapes, or its results are not strided tensors:
/// then the operator must run at once, and says why if it cannot.
std::shared_ptr<const Rehearsal> rehearsal_of(const c10::OperatorHandle& op, const Facts& facts,
                                              std::span<const c10::IValue> args);

}  // namespace tutti::test::fake_cuda
