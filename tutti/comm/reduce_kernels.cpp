#include "tutti/comm/reduce_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tutti/base/check.h"
#include "tutti/comm/kernels/dispatch.h"

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
class Program {
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

void reduce_blocks(const ReduceKernels& kernels, const Program& program,
                   std::span<const void* const> inputs, std::span<void* const> outs,
                   int64_t num_elements, int64_t element_bytes) {
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
    for (void* out : outs)
      kernels.store(static_cast<char*>(out) + offset, buffers[program.result()].data(), n,
                    static_cast<int64_t>(inputs.size()));
  }
}

int row_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return kFloat32;
    case DType::float64: return kFloat64;
    case DType::bfloat16: return kBFloat16;
    case DType::float16: return kFloat16;
    case DType::int32: return kInt32;
    case DType::int64: return kInt64;
    default: return -1;
  }
}

// The shapes that the fused kernels are written for.
bool is_plain_tree(const ReductionShape& shape) {
  using Steps = std::vector<ReductionShape::Step>;
  static const Steps kPlain[] = {{{0, 1}}, {{0, 1}, {0, 2}}, {{0, 1}, {2, 3}, {0, 2}}};
  const int n = shape.replicas();
  return n >= 2 && n <= 4 && shape.steps() == kPlain[n - 2];
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
  if (row_of(dtype) < 0)
    throw UsageError(
        fmt::format("{} of {}: expected float32, float64, bfloat16, float16, int32 or int64",
                    name_of(op), name_of(dtype)));
  if (op == ReduceOp::mean && !is_floating(dtype))
    throw UsageError(
        fmt::format("mean of {}: a mean needs a floating type; use sum", name_of(dtype)));
}

void reduce_with(const ReduceTable& table, DType dtype, ReduceOp op, const ReductionShape& shape,
                 std::span<const void* const> inputs, std::span<void* const> outs,
                 int64_t num_elements) {
  require_reducible(dtype, op);
  const size_t n = inputs.size();
  TUTTI_CHECK(static_cast<int>(n) == shape.replicas(), "{} inputs for {}", n, shape.to_string());
  if (num_elements == 0 || outs.empty()) return;
  if (n == 1) return copy_to_all(inputs[0], outs, num_elements * size_of(dtype));

  const ReduceKernels& kernels = table.kernels[row_of(dtype)][static_cast<int>(op)];
  const bool whole = std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end();
  if (whole && is_plain_tree(shape)) {
    if (outs.size() == 1) return kernels.to_one[n - 2](inputs.data(), outs.data(), num_elements);
    if (outs.size() == n) return kernels.to_all[n - 2](inputs.data(), outs.data(), num_elements);
  }
  // Kept between calls, so that steady state allocates nothing.
  thread_local Program program;
  program.build(shape, inputs);
  if (program.empty()) return copy_to_all(nullptr, outs, num_elements * size_of(dtype));
  reduce_blocks(kernels, program, inputs, outs, num_elements, size_of(dtype));
}

}  // namespace detail

void reduce_inputs_to_all(DType dtype, ReduceOp op, const ReductionShape& shape,
                          std::span<const void* const> inputs, std::span<void* const> outs,
                          int64_t num_elements) {
  static const detail::ReduceTable& table = detail::reduce_table_of(best_variant());
  detail::reduce_with(table, dtype, op, shape, inputs, outs, num_elements);
}

void reduce_inputs(DType dtype, ReduceOp op, const ReductionShape& shape,
                   std::span<const void* const> inputs, void* out, int64_t num_elements) {
  reduce_inputs_to_all(dtype, op, shape, inputs, {&out, 1}, num_elements);
}

}  // namespace tutti
