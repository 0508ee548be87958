// The collectives of TuttiBackend: tensors to operations.

#include <ATen/ATen.h>

#include "backend.h"
#include "tensors.h"

namespace tutti::python {
namespace {

using WorkPointer = TuttiBackend::WorkPointer;

// Whether the caller will wait at once. LibTorch 2.6 does not say so of every operation.
template <class Options>
bool waits(const Options& options) {
  if constexpr (requires { options.asyncOp; })
    return !options.asyncOp;
  else
    return false;
}

// The gathered or scattered whole: the list's own memory where it is one piece, else a buffer.
at::Tensor whole_of(const Tensors& parts) {
  if (!adjoin(parts)) return room_for(parts);
  const auto flat = parts.front().detach();
  int64_t num_elements = 0;
  for (const auto& part : parts) num_elements += part.numel();
  return at::from_blob(flat.data_ptr(), {num_elements}, flat.options().requires_grad(false));
}

void copy_parts_back(TensorCall& call, const Tensors& parts, const at::Tensor& whole) {
  if (whole.numel() == 0 || whole.data_ptr() == parts.front().data_ptr()) return;
  int64_t begin = 0;
  for (const auto& part : parts) {
    call.copy_back(part.detach(), whole.narrow(0, begin, part.numel()).view(part.sizes()));
    begin += part.numel();
  }
}

// Elements of `per_row` times each split: what goes to, or comes from, each rank.
std::vector<int64_t> counts_of(const std::vector<int64_t>& splits, const at::Tensor& tensor,
                               int size) {
  std::vector<int64_t> counts(static_cast<size_t>(size));
  if (splits.empty()) {
    TORCH_CHECK(tensor.dim() == 0 || tensor.size(0) % size == 0,
                "Tensor's dim 0 does not divide equally across group size");
    for (auto& count : counts) count = tensor.numel() / size;
    return counts;
  }
  TORCH_CHECK(static_cast<int>(splits.size()) == size,
              "Number of tensor splits not equal to group size");
  int64_t rows = 0;
  for (const int64_t split : splits) rows += split;
  TORCH_CHECK(rows == tensor.size(0), "Split sizes doesn't match total dim 0 size");
  const int64_t per_row = tensor.size(0) > 0 ? tensor.numel() / tensor.size(0) : 0;
  for (size_t r = 0; r < counts.size(); ++r) counts[r] = splits[r] * per_row;
  return counts;
}

std::vector<int64_t> numels(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

// Types that no engine knows travel as bytes, so their counts are bytes too.
void scale_to_bytes(std::vector<int64_t>& counts, const at::Tensor& tensor) {
  if (dtype_of(tensor.scalar_type())) return;
  for (auto& count : counts) count *= static_cast<int64_t>(tensor.element_size());
}

}  // namespace

WorkPointer TuttiBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  constexpr auto kCall = "tutti::broadcast";
  check_dense(kCall, tensors);
  check_root(kCall, options.rootRank, size_);
  const auto count = static_cast<int64_t>(tensors.size());
  TORCH_CHECK(options.rootTensor >= 0 && options.rootTensor < count, kCall,
              ": invalid root tensor: ", options.rootTensor);
  check_same(kCall, tensors, tensors.front());
  auto started =
      start(c10d::OpType::BROADCAST, "tutti:broadcast", tensors, {tensors}, options.timeout);
  const auto& first = tensors[static_cast<size_t>(options.rootTensor)];
  const at::Tensor data = rank_ == options.rootRank ? contiguous(first) : contiguous_room(first);
  started.call->keep(data);
  for (const auto& tensor : tensors)
    if (tensor.data_ptr() != data.data_ptr()) started.call->copy_back(tensor.detach(), data);
  started.call->operations.push_back({.collective = Collective::broadcast,
                                      .root = static_cast<int>(options.rootRank),
                                      .output = span_of(data),
                                      .limit = started.limit});
  return launch(std::move(started), waits(options));
}

void TuttiBackend::add_all_reduce(Started& started, const at::Tensor& tensor, ReduceOp op) {
  const at::Tensor data = started.call->keep(contiguous(tensor));
  if (data.data_ptr() != tensor.data_ptr()) started.call->copy_back(tensor.detach(), data);
  started.call->operations.push_back({.collective = Collective::all_reduce,
                                      .reduce = op,
                                      .output = span_of(data),
                                      .limit = started.limit});
}

WorkPointer TuttiBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  constexpr auto kCall = "tutti::allreduce";
  TORCH_CHECK(!tensors.empty(), kCall, ": requires non-empty tensor list");
  if (tensors.front().is_sparse()) return allreduce_sparse(tensors, options);
  check_dense(kCall, tensors);
  check_same(kCall, tensors, tensors.front());
  const ReduceOp op = reduce_op(options.reduceOp, tensors.front().scalar_type());
  auto started =
      start(c10d::OpType::ALLREDUCE, "tutti:all_reduce", tensors, {tensors}, options.timeout);
  if (tensors.size() > 1) {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, kCall,
                ": several tensors are added, only SUM is possible");
    at::Tensor total = tensors.front().detach().clone(at::MemoryFormat::Contiguous);
    for (size_t i = 1; i < tensors.size(); ++i) total.add_(tensors[i].detach());
    add_all_reduce(started, total, op);
    for (const auto& tensor : tensors) started.call->copy_back(tensor.detach(), total);
  } else {
    add_all_reduce(started, tensors.front(), op);
  }
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::allreduce_sparse(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) {
  constexpr auto kCall = "tutti::allreduce";
  check_one(kCall, tensors, "sparse");
  const at::Tensor& tensor = tensors.front();
  TORCH_CHECK(tensor.is_sparse(), kCall,
              ": unsupported layout; expected a dense or sparse (COO) tensor");
  TORCH_CHECK(tensor.is_cpu(), kCall, ": sparse tensor on ", tensor.device(),
              "; backend tutti adds sparse tensors on the CPU alone: move it there, or add "
              "to_dense() of it");
  TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, kCall,
              ": unsupported reduction operation for sparse tensors, only SUM is possible");
  auto started = start(c10d::OpType::_ALLREDUCE_SPARSE, "tutti:sparse_all_reduce", tensors,
                       {tensors}, options.timeout);
  const CallPlace called_at = started.call->called_at;
  started.call = make_sparse_all_reduce(started.work, tensor, size_, started.limit);
  started.call->called_at = called_at;
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  constexpr auto kCall = "tutti::allreduce_coalesced";
  check_dense(kCall, tensors);
  auto started = start(c10d::OpType::ALLREDUCE_COALESCED, "tutti:all_reduce", tensors, {tensors},
                       options.timeout);
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == tensors.front().scalar_type(), kCall,
                ": tensors must all have the same type");
    add_all_reduce(started, tensor, reduce_op(options.reduceOp, tensor.scalar_type()));
  }
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  constexpr auto kCall = "tutti::reduce";
  check_one(kCall, tensors, "input");
  check_dense(kCall, tensors);
  check_root(kCall, options.rootRank, size_);
  const at::Tensor& tensor = tensors.front();
  const ReduceOp op = reduce_op(options.reduceOp, tensor.scalar_type());
  auto started = start(c10d::OpType::REDUCE, "tutti:reduce", tensors, {tensors}, options.timeout);
  const at::Tensor data = started.call->keep(contiguous(tensor));
  if (rank_ == options.rootRank && data.data_ptr() != tensor.data_ptr())
    started.call->copy_back(tensor.detach(), data);
  started.call->operations.push_back({.collective = Collective::reduce,
                                      .reduce = op,
                                      .root = static_cast<int>(options.rootRank),
                                      .output = span_of(data),
                                      .limit = started.limit});
  return launch(std::move(started), waits(options));
}

void TuttiBackend::add_all_gather(Started& started, const Tensors& outputs,
                                  const at::Tensor& input) {
  const at::Tensor whole = started.call->keep(whole_of(outputs));
  const at::Tensor part = started.call->keep(contiguous(input));
  copy_parts_back(*started.call, outputs, whole);
  started.call->operations.push_back({.collective = Collective::all_gather,
                                      .input = span_of(part),
                                      .output = span_of(whole),
                                      .limit = started.limit});
}

void TuttiBackend::add_all_gather(Started& started, const at::Tensor& output,
                                  const at::Tensor& input) {
  const at::Tensor whole = started.call->keep(contiguous_room(output));
  const at::Tensor part = started.call->keep(contiguous(input));
  if (whole.data_ptr() != output.data_ptr()) started.call->copy_back(output.detach(), whole);
  started.call->operations.push_back({.collective = Collective::all_gather,
                                      .input = span_of(part),
                                      .output = span_of(whole),
                                      .limit = started.limit});
}

WorkPointer TuttiBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  constexpr auto kCall = "tutti::allgather";
  check_one(kCall, inputs, "input");
  check_dense(kCall, inputs);
  TORCH_CHECK(outputs.size() == 1, kCall, ": requires a single-element output list, got ",
              outputs.size());
  TORCH_CHECK(static_cast<int>(outputs.front().size()) == size_, kCall,
              ": invalid output tensor list: ", outputs.front().size(), " tensors for ", size_,
              " ranks");
  check_dense(kCall, outputs.front());
  check_same(kCall, outputs.front(), inputs.front());
  auto started =
      start(c10d::OpType::ALLGATHER, "tutti:all_gather", inputs, outputs, options.timeout);
  add_all_gather(started, outputs.front(), inputs.front());
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPointer TuttiBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  constexpr auto kCall = "tutti::allgather_into_tensor";
  check_dense(kCall, inputs);
  check_dense(kCall, outputs);
  TORCH_CHECK(inputs.size() == outputs.size(), kCall, ": ", inputs.size(), " inputs for ",
              outputs.size(), " outputs");
  auto started =
      start(c10d::OpType::_ALLGATHER_BASE, "tutti:all_gather", inputs, {outputs}, options.timeout);
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].scalar_type() == outputs[i].scalar_type(), kCall,
                ": output tensor must have the same type as input tensor");
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * size_, kCall,
                ": output tensor size must be equal to world_size times input tensor size");
    add_all_gather(started, outputs[i], inputs[i]);
  }
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  constexpr auto kCall = "tutti::allgather_coalesced";
  check_dense(kCall, inputs);
  TORCH_CHECK(static_cast<int>(outputs.size()) == size_, kCall,
              ": output lists should be equal to world size, got ", outputs.size());
  auto started = start(c10d::OpType::ALLGATHER_COALESCED, "tutti:all_gather", inputs, outputs,
                       options.timeout);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const auto& list : outputs) {
      TORCH_CHECK(list.size() == inputs.size(), kCall, ": invalid output size: (expected length ",
                  inputs.size(), ", got ", list.size(), ")");
      parts.push_back(list[i]);
    }
    check_dense(kCall, parts);
    check_same(kCall, parts, inputs[i]);
    add_all_gather(started, parts, inputs[i]);
  }
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::gather(TensorLists& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  constexpr auto kCall = "tutti::gather";
  check_root(kCall, options.rootRank, size_);
  check_one(kCall, inputs, "input");
  check_dense(kCall, inputs);
  auto started = start(c10d::OpType::GATHER, "tutti:gather", inputs, outputs, options.timeout);
  Operation operation{.collective = Collective::gather,
                      .root = static_cast<int>(options.rootRank),
                      .input = span_of(started.call->keep(contiguous(inputs.front()))),
                      .limit = started.limit};
  if (rank_ == options.rootRank) {
    TORCH_CHECK(outputs.size() == 1 && static_cast<int>(outputs.front().size()) == size_, kCall,
                ": requires one list of ", size_, " output tensors on the root");
    check_dense(kCall, outputs.front());
    check_same(kCall, outputs.front(), inputs.front());
    const at::Tensor whole = started.call->keep(whole_of(outputs.front()));
    copy_parts_back(*started.call, outputs.front(), whole);
    operation.output = span_of(whole);
  } else {
    TORCH_CHECK(outputs.empty(), kCall, ": requires empty output on non-root");
    operation.output.dtype = operation.input.dtype;
  }
  started.call->operations.push_back(operation);
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                  const c10d::ScatterOptions& options) {
  constexpr auto kCall = "tutti::scatter";
  check_root(kCall, options.rootRank, size_);
  check_one(kCall, outputs, "output");
  check_dense(kCall, outputs);
  const at::Tensor& output = outputs.front();
  Tensors parts = inputs.empty() ? Tensors{} : inputs.front();
  auto started = start(c10d::OpType::SCATTER, "tutti:scatter", parts, {outputs}, options.timeout);
  const at::Tensor room = started.call->keep(contiguous_room(output));
  if (room.data_ptr() != output.data_ptr()) started.call->copy_back(output.detach(), room);
  Operation operation{.collective = Collective::scatter,
                      .root = static_cast<int>(options.rootRank),
                      .output = span_of(room),
                      .limit = started.limit};
  operation.input.dtype = operation.output.dtype;
  if (rank_ == options.rootRank) {
    TORCH_CHECK(inputs.size() == 1 && static_cast<int>(parts.size()) == size_, kCall,
                ": requires one list of ", size_, " input tensors on the root");
    check_dense(kCall, parts);
    check_same(kCall, parts, output);
    operation.input = span_of(started.call->keep(adjoin(parts) ? whole_of(parts) : joined(parts)));
    for (const auto& part : parts) started.call->keep(part);
  } else {
    TORCH_CHECK(inputs.empty(), kCall, ": requires empty input on non-root");
  }
  started.call->operations.push_back(operation);
  return launch(std::move(started), waits(options));
}

void TuttiBackend::add_reduce_scatter(Started& started, const at::Tensor& output,
                                      const at::Tensor& input, ReduceOp op) {
  const at::Tensor whole = started.call->keep(contiguous(input));
  const at::Tensor part = started.call->keep(contiguous_room(output));
  if (part.data_ptr() != output.data_ptr()) started.call->copy_back(output.detach(), part);
  started.call->operations.push_back({.collective = Collective::reduce_scatter,
                                      .reduce = op,
                                      .input = span_of(whole),
                                      .output = span_of(part),
                                      .limit = started.limit});
}

WorkPointer TuttiBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  constexpr auto kCall = "tutti::reduce_scatter";
  check_one(kCall, outputs, "output");
  check_dense(kCall, outputs);
  TORCH_CHECK(inputs.size() == 1 && static_cast<int>(inputs.front().size()) == size_, kCall,
              ": requires one list of ", size_, " input tensors");
  check_dense(kCall, inputs.front());
  check_same(kCall, inputs.front(), outputs.front());
  const ReduceOp op = reduce_op(options.reduceOp, outputs.front().scalar_type());
  auto started = start(c10d::OpType::REDUCE_SCATTER, "tutti:reduce_scatter", inputs.front(),
                       {outputs}, options.timeout);
  add_reduce_scatter(started, outputs.front(), joined(inputs.front()), op);
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPointer TuttiBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr auto kCall = "tutti::reduce_scatter_tensor";
  check_dense(kCall, outputs);
  check_dense(kCall, inputs);
  TORCH_CHECK(inputs.size() == outputs.size(), kCall, ": ", inputs.size(), " inputs for ",
              outputs.size(), " outputs");
  auto started = start(c10d::OpType::_REDUCE_SCATTER_BASE, "tutti:reduce_scatter", inputs,
                       {outputs}, options.timeout);
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].scalar_type() == outputs[i].scalar_type(), kCall,
                ": input tensor must have the same type as the output tensor");
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size_, kCall,
                ": input tensor size must be equal to world_size times output tensor size");
    add_reduce_scatter(started, outputs[i], inputs[i],
                       reduce_op(options.reduceOp, inputs[i].scalar_type()));
  }
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& options) {
  constexpr auto kCall = "tutti::alltoall_base";
  check_dense(kCall, {output, input});
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), kCall,
              ": output and input must have the same type");
  auto send_counts = counts_of(input_splits, input, size_);
  auto receive_counts = counts_of(output_splits, output, size_);
  scale_to_bytes(send_counts, input);
  scale_to_bytes(receive_counts, output);
  auto started =
      start(c10d::OpType::ALLTOALL_BASE, "tutti:all_to_all", {input}, {{output}}, options.timeout);
  const at::Tensor from = started.call->keep(contiguous(input));
  const at::Tensor room = started.call->keep(contiguous_room(output));
  if (room.data_ptr() != output.data_ptr()) started.call->copy_back(output.detach(), room);
  started.call->operations.push_back({.collective = Collective::all_to_all,
                                      .input = span_of(from),
                                      .output = span_of(room),
                                      .input_counts = std::move(send_counts),
                                      .output_counts = std::move(receive_counts),
                                      .limit = started.limit});
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& options) {
  constexpr auto kCall = "tutti::alltoall";
  TORCH_CHECK(static_cast<int>(inputs.size()) == size_ && inputs.size() == outputs.size(), kCall,
              ": ", inputs.size(), " inputs and ", outputs.size(), " outputs; expected ", size_,
              " of each");
  check_dense(kCall, inputs);
  check_dense(kCall, outputs);
  for (const auto* list : {&inputs, &outputs})
    for (const auto& tensor : *list)
      TORCH_CHECK(tensor.scalar_type() == inputs.front().scalar_type(), kCall,
                  ": tensors must all have the same type");
  auto started =
      start(c10d::OpType::ALLTOALL, "tutti:all_to_all", inputs, {outputs}, options.timeout);
  auto send_counts = numels(inputs);
  auto receive_counts = numels(outputs);
  scale_to_bytes(send_counts, inputs.front());
  scale_to_bytes(receive_counts, outputs.front());
  const at::Tensor from = started.call->keep(joined(inputs));
  const at::Tensor room = started.call->keep(room_for(outputs));
  copy_parts_back(*started.call, outputs, room);
  started.call->operations.push_back({.collective = Collective::all_to_all,
                                      .input = span_of(from),
                                      .output = span_of(room),
                                      .input_counts = std::move(send_counts),
                                      .output_counts = std::move(receive_counts),
                                      .limit = started.limit});
  return launch(std::move(started), waits(options));
}

WorkPointer TuttiBackend::barrier(const c10d::BarrierOptions& options) {
  auto started = start(c10d::OpType::BARRIER, "tutti:barrier", {}, {}, options.timeout);
  started.call->operations.push_back({.collective = Collective::barrier, .limit = started.limit});
  return launch(std::move(started), waits(options));
}

}  // namespace tutti::python
