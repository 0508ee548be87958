#include "tutti/comm/engine/reduce_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/kernels/dispatch.h"

namespace tutti {
namespace detail {
namespace {

// An accumulator block of 2 KiB: the few that a tree needs at once stay in a 32 KiB L1 beside the
// inputs' blocks.
constexpr int64_t kBlockElements = 256;
constexpr int64_t kBlockBytes = kBlockElements * 8;
// Depth of any tree of up to a million replicas on a million hosts, twice over.
constexpr int kMaxBuffers = 48;

// One step of a reduction as the block loop carries it out.
struct Instruction {
  enum Kind : uint8_t { load, add_input, add } kind;
  int buffer;
  int operand;  ///< an input, or for `add` a buffer
};

// What a partial result of the tree is, before its block is computed.
struct Partial {
  enum Kind : uint8_t { absent, input, buffer } kind = absent;
  int index = 0;
};

// The tree as instructions on a few buffers, the same for every block. Null inputs are left out.
class SumProgram {
 public:
  void build(const ReductionShape& shape, std::span<const void* const> inputs) {
    instructions_.clear();
    free_.clear();
    used_ = 0;
    partials_.assign(inputs.size(), {});
    for (size_t r = 0; r < inputs.size(); ++r)
      if (inputs[r] != nullptr) partials_[r] = {Partial::input, static_cast<int>(r)};
    for (const auto& step : shape.steps()) combine(partials_[step.into], partials_[step.from]);
    if (partials_[0].kind == Partial::input) partials_[0] = loaded(partials_[0].index);
    TUTTI_CHECK(used_ <= kMaxBuffers, "{} buffers for {}", used_, shape.to_string());
  }

  const std::vector<Instruction>& instructions() const { return instructions_; }
  bool empty() const { return partials_[0].kind == Partial::absent; }
  int result() const { return partials_[0].index; }

 private:
  void combine(Partial& into, Partial& from) {
    // Both operations and their operands commute bit for bit, so an accumulator may stand first.
    if (into.kind == Partial::absent ||
        (into.kind == Partial::input && from.kind == Partial::buffer))
      std::swap(into, from);
    if (from.kind == Partial::absent) return;
    if (into.kind == Partial::input) into = loaded(into.index);
    if (from.kind == Partial::input) {
      instructions_.push_back({Instruction::add_input, into.index, from.index});
    } else {
      instructions_.push_back({Instruction::add, into.index, from.index});
      free_.push_back(from.index);
    }
    from.kind = Partial::absent;
  }

  Partial loaded(int input) {
    int buffer = used_;
    if (free_.empty()) {
      ++used_;
    } else {
      buffer = free_.back();
      free_.pop_back();
    }
    instructions_.push_back({Instruction::load, buffer, input});
    return {Partial::buffer, buffer};
  }

  std::vector<Instruction> instructions_;
  std::vector<Partial> partials_;
  std::vector<int> free_;
  int used_ = 0;
};

const char* moved(const void* start, int64_t bytes) {
  return static_cast<const char*>(start) + bytes;
}

// Carries out `program` for every block, and gives each result to `write(accumulator, begin, n)`.
template <class Write>
void for_each_block(const ReduceKernels& kernels, const SumProgram& program,
                    std::span<const void* const> inputs, int64_t num_elements,
                    int64_t element_bytes, const Write& write) {
  alignas(64) std::array<std::array<std::byte, kBlockBytes>, kMaxBuffers> buffers;
  for (int64_t begin = 0; begin < num_elements; begin += kBlockElements) {
    const int64_t n = std::min(kBlockElements, num_elements - begin);
    const int64_t offset = begin * element_bytes;
    for (const auto& instruction : program.instructions()) {
      void* const accumulator = buffers[instruction.buffer].data();
      if (instruction.kind == Instruction::add)
        kernels.add(accumulator, buffers[instruction.operand].data(), n);
      else if (instruction.kind == Instruction::load)
        kernels.load(accumulator, moved(inputs[instruction.operand], offset), n);
      else
        kernels.add_input(accumulator, moved(inputs[instruction.operand], offset), n);
    }
    write(buffers[program.result()].data(), begin, n);
  }
}

// Kept between calls, so that steady state allocates nothing.
const SumProgram& program_of(const ReductionShape& shape, std::span<const void* const> inputs) {
  thread_local SumProgram program;
  program.build(shape, inputs);
  return program;
}

static_assert(kReduceRows == static_cast<int>(DType::float64) + 1 &&
              kInt64 == static_cast<int>(DType::int64) &&
              kBFloat16 == static_cast<int>(DType::bfloat16));
static_assert(kReduceColumns == static_cast<int>(ReduceOp::logical_xor) + 1 &&
              kProduct == static_cast<int>(ReduceOp::product) &&
              kBitXor == static_cast<int>(ReduceOp::bit_xor));

const ReduceKernels& kernels_of(const ReduceTable& table, DType dtype, ReduceOp op) {
  require_reducible(dtype, op);
  return table.kernels[static_cast<int>(dtype)][static_cast<int>(op)];
}

bool is_logical(DType dtype, ReduceOp op) {
  return op >= ReduceOp::logical_and || dtype == DType::boolean;
}

// The shapes that the fused kernels are written for.
bool is_plain_tree(const ReductionShape& shape) {
  using Step = ReductionShape::Step;
  static constexpr Step kPlain[][3] = {{{0, 1}}, {{0, 1}, {0, 2}}, {{0, 1}, {2, 3}, {0, 2}}};
  const int n = shape.replicas();
  if (n < 2 || n > 4) return false;
  const std::vector<Step>& steps = shape.steps();
  return std::equal(steps.begin(), steps.end(), kPlain[n - 2]);
}

void copy_to_all(const void* from, std::span<void* const> outs, int64_t bytes) {
  for (void* out : outs) {
    if (out == from || bytes == 0) continue;
    if (from == nullptr)
      std::memset(out, 0, static_cast<size_t>(bytes));
    else
      std::memcpy(out, from, static_cast<size_t>(bytes));
  }
}

}  // namespace

const ReduceTable& reduce_table_of([[maybe_unused]] CpuVariant variant) noexcept {
  if constexpr (kHasX86Variants) {
    if (variant == CpuVariant::avx512) return comm::avx512::reduce_table;
    if (variant == CpuVariant::avx2) return comm::avx2::reduce_table;
  }
  return comm::baseline::reduce_table;
}

void require_reducible(DType dtype, ReduceOp op) {
  if (op == ReduceOp::mean && !is_floating(dtype))
    throw UsageError(
        fmt::format("mean of {}: a mean needs a floating type; use sum", name_of(dtype)));
  if (op >= ReduceOp::bit_and && is_floating(dtype))
    throw UsageError(
        fmt::format("{} of {}: expected bool or an integer type", name_of(op), name_of(dtype)));
}

void reduce_with(const ReduceTable& table, DType dtype, ReduceOp op, const ReductionShape& shape,
                 std::span<const void* const> inputs, std::span<void* const> outs,
                 int64_t num_elements) {
  const ReduceKernels& kernels = kernels_of(table, dtype, op);
  const size_t n = inputs.size();
  const int64_t element_bytes = size_of(dtype);
  TUTTI_CHECK(static_cast<int>(n) == shape.replicas(), "{} inputs for {}", n, shape.to_string());
  if (num_elements == 0 || outs.empty()) return;
  if (n == 1 && !is_logical(dtype, op))
    return copy_to_all(inputs[0], outs, num_elements * element_bytes);

  const bool whole = std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end();
  if (whole && kernels.to_one[0] != nullptr && is_plain_tree(shape)) {
    if (outs.size() == 1) return kernels.to_one[n - 2](inputs.data(), outs.data(), num_elements);
    if (outs.size() == n) return kernels.to_all[n - 2](inputs.data(), outs.data(), num_elements);
  }
  const SumProgram& program = program_of(shape, inputs);
  if (program.empty()) return copy_to_all(nullptr, outs, num_elements * element_bytes);
  for_each_block(kernels, program, inputs, num_elements, element_bytes,
                 [&](const void* accumulator, int64_t begin, int64_t count) {
                   for (void* out : outs)
                     kernels.store(static_cast<char*>(out) + begin * element_bytes, accumulator,
                                   count, static_cast<int64_t>(n));
                 });
}

void reduce_partial_with(const ReduceTable& table, DType dtype, ReduceOp op,
                         const ReductionShape& shape, std::span<const void* const> inputs,
                         void* out, int64_t num_elements) {
  const DType accumulator_dtype = accumulator_of(dtype);
  if (accumulator_dtype == dtype)
    return reduce_with(table, dtype, partial_op(op), shape, inputs, {&out, 1}, num_elements);
  const ReduceKernels& kernels = kernels_of(table, dtype, op);
  TUTTI_CHECK(static_cast<int>(inputs.size()) == shape.replicas(), "{} inputs for {}",
              inputs.size(), shape.to_string());
  const int64_t bytes = size_of(accumulator_dtype);
  const SumProgram& program = program_of(shape, inputs);
  if (program.empty()) return copy_to_all(nullptr, {&out, 1}, num_elements * bytes);
  for_each_block(kernels, program, inputs, num_elements, size_of(dtype),
                 [&](const void* accumulator, int64_t begin, int64_t count) {
                   std::memcpy(static_cast<char*>(out) + begin * bytes, accumulator,
                               static_cast<size_t>(count * bytes));
                 });
}

void finish_with(const ReduceTable& table, DType dtype, ReduceOp op, const void* partial, void* out,
                 int64_t num_elements, int replicas) {
  const bool same = accumulator_of(dtype) == dtype && op != ReduceOp::mean;
  if (same && partial == out) return;
  kernels_of(table, dtype, op).store(out, partial, num_elements, replicas);
}

}  // namespace detail

namespace {

const detail::ReduceTable& best_table() {
  static const detail::ReduceTable& table = detail::reduce_table_of(best_variant());
  return table;
}

}  // namespace

void reduce_inputs_to_all(DType dtype, ReduceOp op, const ReductionShape& shape,
                          std::span<const void* const> inputs, std::span<void* const> outs,
                          int64_t num_elements) {
  detail::reduce_with(best_table(), dtype, op, shape, inputs, outs, num_elements);
}

void reduce_inputs(DType dtype, ReduceOp op, const ReductionShape& shape,
                   std::span<const void* const> inputs, void* out, int64_t num_elements) {
  reduce_inputs_to_all(dtype, op, shape, inputs, {&out, 1}, num_elements);
}

DType accumulator_of(DType dtype) noexcept {
  return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype;
}

ReduceOp partial_op(ReduceOp op) noexcept { return op == ReduceOp::mean ? ReduceOp::sum : op; }

void reduce_partial(DType dtype, ReduceOp op, const ReductionShape& shape,
                    std::span<const void* const> inputs, void* out, int64_t num_elements) {
  detail::reduce_partial_with(best_table(), dtype, op, shape, inputs, out, num_elements);
}

void finish_partial(DType dtype, ReduceOp op, const void* partial, void* out, int64_t num_elements,
                    int replicas) {
  detail::finish_with(best_table(), dtype, op, partial, out, num_elements, replicas);
}

}  // namespace tutti
