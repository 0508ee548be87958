// Operations as NCCL's calls. All of a batch stand between one ncclGroupStart and ncclGroupEnd, so
// sends and receives of one batch go at once, in whatever order they are written.
//
// NCCL has equal parts alone. Unequal ones are a broadcast or a reduction for each part, or a send
// and a receive for each pair, in one group: NCCL runs them as one kernel.
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/nccl/nccl_engine.h"

namespace tutti::detail::nccl {
namespace {

struct NcclType {
  DType dtype;
  ncclDataType_t type;
};
constexpr NcclType kTypes[] = {{DType::int8, ncclInt8},       {DType::uint8, ncclUint8},
                               {DType::int32, ncclInt32},     {DType::uint32, ncclUint32},
                               {DType::int64, ncclInt64},     {DType::uint64, ncclUint64},
                               {DType::float16, ncclFloat16}, {DType::float32, ncclFloat32},
                               {DType::float64, ncclFloat64}, {DType::bfloat16, ncclBfloat16}};

struct NcclOp {
  ReduceOp op;
  ncclRedOp_t call;
};
constexpr NcclOp kOps[] = {{ReduceOp::sum, ncclSum},
                           {ReduceOp::mean, ncclAvg},
                           {ReduceOp::min, ncclMin},
                           {ReduceOp::max, ncclMax},
                           {ReduceOp::product, ncclProd}};

const ncclDataType_t* type_of(DType dtype) {
  for (const NcclType& known : kTypes)
    if (known.dtype == dtype) return &known.type;
  return nullptr;
}

const ncclRedOp_t* op_of(ReduceOp op) {
  for (const NcclOp& known : kOps)
    if (known.op == op) return &known.call;
  return nullptr;
}

// Partial results are neither divided nor rounded: a sum in place of a mean.
ncclRedOp_t call_of(const Operation& operation) {
  const bool sums = operation.partial && operation.reduce == ReduceOp::mean;
  return *op_of(sums ? ReduceOp::sum : operation.reduce);
}

}  // namespace

void NcclEngine::refuse_what_nccl_has_not(const Operation& operation) const {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(
        fmt::format("{}, rank {} of {}: NCCL has no {}; copy to the host and use another "
                    "engine there",
                    name_of(operation.collective), rank_, size_, what));
  };
  for (const MemorySpan* span : {&operation.input, &operation.output})
    if (span->data != nullptr && span->num_elements > 0 && !reaches(span->place))
      throw UsageError(
          fmt::format("{}, rank {} of {}: engine \"nccl\" reaches memory of CUDA device {} alone",
                      name_of(operation.collective), rank_, size_, device_));
  if (reduces(operation.collective)) {
    const DType dtype = dtype_of(operation);
    if (type_of(dtype) == nullptr) refuse(fmt::format("sums of {}", name_of(dtype)));
    if (op_of(operation.reduce) == nullptr)
      refuse(fmt::format("operation {}", name_of(operation.reduce)));
    if (operation.partial && is_floating(dtype) && size_of(dtype) == 2)
      refuse(fmt::format("partial sums of {} in float32", name_of(dtype)));
  }
  const bool message = is_message(operation.collective);
  if (message && operation.tag != 0) refuse("tags: messages are told apart by their order alone");
  if (message && operation.root == kAnyRank) refuse("receive from any rank");
}

void NcclEngine::call(const Operation& operation) {
  const MemorySpan& in = operation.input;
  const MemorySpan& out = operation.output;
  const auto count = static_cast<size_t>(out.num_elements);
  switch (operation.collective) {
    case Collective::barrier:
      return check(ncclAllReduce(token_, token_, 1, ncclInt32, ncclSum, comm_, stream_),
                   "ncclAllReduce");
    case Collective::all_reduce:
      return check(ncclAllReduce(out.data, out.data, count, *type_of(out.dtype), call_of(operation),
                                 comm_, stream_),
                   "ncclAllReduce");
    case Collective::reduce:
      return check(ncclReduce(out.data, out.data, count, *type_of(out.dtype), call_of(operation),
                              operation.root, comm_, stream_),
                   "ncclReduce");
    case Collective::broadcast:
      return check(ncclBroadcast(out.data, out.data, static_cast<size_t>(out.num_bytes()),
                                 ncclUint8, operation.root, comm_, stream_),
                   "ncclBroadcast");
    case Collective::reduce_scatter: return reduce_parts(operation);
    case Collective::all_gather: return gather_parts(operation);
    case Collective::scatter:
    case Collective::gather:
    case Collective::all_to_all: return exchange_parts(operation);
    case Collective::send: return send_bytes(in, operation.root);
    case Collective::recv:
      if (operation.source != nullptr) *operation.source = operation.root;
      return receive_bytes(out, operation.root);
  }
}

void NcclEngine::reduce_parts(const Operation& operation) {
  const MemorySpan& in = operation.input;
  const MemorySpan& out = operation.output;
  const ncclDataType_t type = *type_of(in.dtype);
  if (operation.input_counts.empty())
    return check(ncclReduceScatter(in.data, out.data, static_cast<size_t>(out.num_elements), type,
                                   call_of(operation), comm_, stream_),
                 "ncclReduceScatter");
  for (int r = 0; r < size_; ++r) {
    const MemorySpan theirs = part_of(in, operation.input_counts, r, size_);
    if (theirs.num_elements == 0) continue;
    check(ncclReduce(theirs.data, r == rank_ ? out.data : nullptr,
                     static_cast<size_t>(theirs.num_elements), type, call_of(operation), r, comm_,
                     stream_),
          "ncclReduce");
  }
}

void NcclEngine::gather_parts(const Operation& operation) {
  const MemorySpan& in = operation.input;
  if (operation.output_counts.empty())
    return check(ncclAllGather(in.data, operation.output.data, static_cast<size_t>(in.num_bytes()),
                               ncclUint8, comm_, stream_),
                 "ncclAllGather");
  for (int r = 0; r < size_; ++r) {
    const MemorySpan theirs = part_of(operation.output, operation.output_counts, r, size_);
    if (theirs.num_elements == 0) continue;
    check(ncclBroadcast(r == rank_ ? in.data : nullptr, theirs.data,
                        static_cast<size_t>(theirs.num_bytes()), ncclUint8, r, comm_, stream_),
          "ncclBroadcast");
  }
}

// scatter, gather, all_to_all: each part from where it is to where it belongs.
void NcclEngine::exchange_parts(const Operation& operation) {
  const bool sends = operation.collective != Collective::scatter || operation.root == rank_;
  const bool receives = operation.collective != Collective::gather || operation.root == rank_;
  const auto outgoing = [&](int r) {
    return operation.collective == Collective::gather
               ? operation.input
               : part_of(operation.input, operation.input_counts, r, size_);
  };
  const auto incoming = [&](int r) {
    return operation.collective == Collective::scatter
               ? operation.output
               : part_of(operation.output, operation.output_counts, r, size_);
  };
  if (sends && receives) copy_here(incoming(rank_), outgoing(rank_));
  const bool rooted = operation.collective != Collective::all_to_all;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const bool root_is_there = rooted && operation.root == r;
    if (sends && (operation.collective != Collective::gather || root_is_there))
      send_bytes(outgoing(r), r);
    if (receives && (operation.collective != Collective::scatter || root_is_there))
      receive_bytes(incoming(r), r);
  }
}

void NcclEngine::send_bytes(const MemorySpan& data, int to) {
  if (data.num_elements == 0) return;
  check(ncclSend(data.data, static_cast<size_t>(data.num_bytes()), ncclUint8, to, comm_, stream_),
        "ncclSend");
}

void NcclEngine::receive_bytes(const MemorySpan& data, int from) {
  if (data.num_elements == 0) return;
  check(ncclRecv(data.data, static_cast<size_t>(data.num_bytes()), ncclUint8, from, comm_, stream_),
        "ncclRecv");
}

void NcclEngine::copy_here(const MemorySpan& to, const MemorySpan& from) {
  if (to.num_elements == 0 || to.data == from.data) return;
  check_cuda(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.num_bytes()),
                             cudaMemcpyDefault, stream_),
             "cudaMemcpyAsync");
}

}  // namespace tutti::detail::nccl
