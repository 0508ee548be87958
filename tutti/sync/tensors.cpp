#include "tutti/sync/tensors.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "tutti/base/detail/check.h"
#include "tutti/queues/host_copies.h"
#include "tutti/queues/upload.h"
#include "tutti/sync/before_use.h"

namespace tutti {
namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::boolean, at::kBool},   {DType::uint8, at::kByte},        {DType::int8, at::kChar},
    {DType::uint16, at::kUInt16},  {DType::int16, at::kShort},       {DType::uint32, at::kUInt32},
    {DType::int32, at::kInt},      {DType::uint64, at::kUInt64},     {DType::int64, at::kLong},
    {DType::float16, at::kHalf},   {DType::bfloat16, at::kBFloat16}, {DType::float32, at::kFloat},
    {DType::float64, at::kDouble},
};

template <class Entries>
std::vector<std::pair<std::string, at::Tensor>> each_once(const Entries& entries) {
  std::vector<std::pair<std::string, at::Tensor>> unique;
  std::unordered_set<const void*> seen;
  for (const auto& entry : entries) {
    const at::Tensor& tensor = entry.value();
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      unique.emplace_back(entry.key(), tensor);
  }
  return unique;
}

}  // namespace

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  throw UsageError(
      fmt::format("tensors of dtype {} cannot be shared between replicas; use one of "
                  "LibTorch's integer or floating dtypes",
                  c10::toString(type)));
}

at::ScalarType scalar_type_of(DType dtype) { return kTypes[static_cast<size_t>(dtype)].second; }

MemorySpan span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw UsageError("span_of: the tensor is undefined");
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
    throw UsageError(
        fmt::format("span_of: a tensor of shape {} is not dense and contiguous; call "
                    "contiguous() and keep the result",
                    c10::str(tensor.sizes())));
  Place place;
  if (!tensor.device().is_cpu())
    place = {Place::Kind::cuda, static_cast<int16_t>(tensor.device().index()),
             DeviceQueue::current(tensor.device(), {}).handle()};
  require_ready(tensor);
  return {tensor.data_ptr(), tensor.numel(), dtype_of(tensor.scalar_type()), place};
}

at::Tensor tensor_of(const Array& array) {
  return at::from_blob(
      array.data(), array.shape(), [owner = array.owner()](void*) {},
      at::TensorOptions().dtype(scalar_type_of(array.dtype())));
}

Array array_of(const at::Tensor& tensor) {
  const auto owner = std::make_shared<at::Tensor>(tensor.detach().contiguous());
  return Array::view(owner->data_ptr(), dtype_of(owner->scalar_type()), owner->sizes().vec(),
                     owner);
}

std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module) {
  return each_once(module.named_buffers());
}

std::vector<std::shared_ptr<TableLayer>> table_layers_of(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<TableLayer>> layers;
  for (const auto& inner : module.modules())
    if (auto layer = std::dynamic_pointer_cast<TableLayer>(inner);
        layer && std::ranges::find(layers, layer) == layers.end())
      layers.push_back(std::move(layer));
  return layers;
}

namespace detail {
namespace {

std::vector<std::pair<std::string, at::Tensor>> parameters_and_buffers(
    const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors = unique_parameters(module);
  for (auto& buffer : unique_buffers(module)) tensors.push_back(std::move(buffer));
  return tensors;
}

}  // namespace

std::string describe(const torch::nn::Module& module) {
  std::string text;
  const auto add = [&](const char* kind,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    for (const auto& [name, tensor] : tensors)
      text += fmt::format("{} \"{}\" {} {}\n", kind, name, c10::toString(tensor.scalar_type()),
                          c10::str(tensor.sizes()));
  };
  add("parameter", unique_parameters(module));
  add("buffer", unique_buffers(module));
  return text;
}

// Names the first line in which `other` differs from rank 0's description.
void require_same(const std::string& first, const std::string& other, int other_rank) {
  if (first == other) return;
  std::istringstream ours(first), theirs(other);
  std::string left, right;
  for (int line = 1; std::getline(ours, left) || true; ++line) {
    if (!ours) left = "nothing more";
    if (!std::getline(theirs, right)) right = "nothing more";
    if (left != right)
      throw Mismatch(
          fmt::format("the models of rank 0 and rank {} differ, first in part {}:\n"
                      "  rank 0 has {}\n  rank {} has {}\n"
                      "  every replica's factory must make the same model",
                      other_rank, line, left, other_rank, right));
    TUTTI_CHECK(ours && theirs, "descriptions end without a difference");
  }
}

// Every rank sees all descriptions, so all find the same difference.
void compare_over_group(Group group, const std::string& mine, Millis limit) {
  const int size = group.size();
  std::vector<int64_t> lengths(size);
  int64_t length = static_cast<int64_t>(mine.size());
  group.all_gather(span_of(std::span(&length, 1)), span_of(std::span(lengths)), limit).wait(limit);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<uint8_t> padded(longest), all(longest * size);
  std::copy(mine.begin(), mine.end(), padded.begin());
  group.all_gather(span_of(std::span(padded)), span_of(std::span(all)), limit).wait(limit);
  const auto text_of = [&](int rank) {
    const auto* begin = reinterpret_cast<const char*>(all.data()) + rank * longest;
    return std::string(begin, begin + lengths[rank]);
  };
  for (int rank = 1; rank < size; ++rank) require_same(text_of(0), text_of(rank), rank);
}

void copy_values(const torch::nn::Module& from, const torch::nn::Module& to, Millis limit) {
  at::NoGradGuard no_grad;
  const auto source = parameters_and_buffers(from), target = parameters_and_buffers(to);
  const Deadline deadline(patience_with_device(limit));
  for (size_t i = 0; i < source.size(); ++i) {
    const at::Tensor value = source[i].second.detach(), place = target[i].second.detach();
    if (place.is_cpu())
      place.copy_(on_host(value, deadline, "the value of " + source[i].first));
    else if (value.is_cpu())
      copy_queued(place, value);
    else
      place.copy_(value, /*non_blocking=*/true);
  }
}

void broadcast_values(Group group, const torch::nn::Module& module, int root, Millis limit) {
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters_and_buffers(module)) {
    const at::Tensor values = on_host(tensor.detach(), Deadline(patience_with_device(limit)),
                                      "the value of " + name + " for all ranks")
                                  .contiguous();
    group.broadcast(span_of(values), root, limit).wait(limit);
    copy_queued(tensor, values);
  }
}

}  // namespace detail

}  // namespace tutti
