#include "tutti/parallel/stages/detail/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti::parallel::detail {
namespace {

// Receives of a channel that are posted at once: one parcel may come while another is computed.
constexpr size_t kPostedAhead = 2;

// The order of dimensions in memory, outermost first, 4 bits each.
constexpr int64_t kUndefined = -1;
constexpr int kBitsOfDim = 4;
static_assert(kBitsOfDim * kMostDims < 64);

std::vector<int64_t> dims_by_stride(const at::Tensor& tensor) {
  std::vector<int64_t> dims(static_cast<size_t>(tensor.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  std::ranges::stable_sort(dims, [&](int64_t a, int64_t b) {
    return std::pair(tensor.stride(a), tensor.size(a)) >
           std::pair(tensor.stride(b), tensor.size(b));
  });
  return dims;
}

int64_t code_of(const std::vector<int64_t>& dims) {
  int64_t code = 0;
  for (const int64_t dim : dims) code = code << kBitsOfDim | dim;
  return code;
}

std::vector<int64_t> dims_of(int64_t code, int64_t count) {
  std::vector<int64_t> dims(static_cast<size_t>(count));
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim, code >>= kBitsOfDim)
    *dim = code & ((1 << kBitsOfDim) - 1);
  return dims;
}

// The elements from `memory` on, with that order of dimensions.
at::Tensor in_memory_order(const at::Tensor& memory, const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    strides[static_cast<size_t>(*dim)] = stride;
    stride *= memory.size(*dim);
  }
  return memory.as_strided(memory.sizes(), strides);
}

}  // namespace

at::Tensor packed(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  const at::Tensor dense = plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
  // As it would arrive: a dimension of one element may have any stride.
  return in_memory_order(dense, dims_by_stride(dense));
}

std::string name_of_stage(int stage, int rank) {
  return fmt::format("stage {} (rank {})", stage, rank);
}

void with_words(const std::function<std::string()>& words, const std::function<void()>& action) {
  const auto said = [&](const std::exception& error) {
    return fmt::format("{}: {}", words(), error.what());
  };
  try {
    action();
  } catch (const PeerLost& error) {
    throw PeerLost(said(error));
  } catch (const Timeout& error) {
    throw Timeout(said(error));
  } catch (const Mismatch& error) {
    throw Mismatch(said(error));
  }
}

Channel::Channel(Group group, Content content, Millis limit)
    : group_(std::move(group)), content_(std::move(content)), limit_(limit) {}

std::vector<int64_t> Channel::shape_of(size_t tensor, int microbatch) const {
  std::vector<int64_t> shape = content_.tensors[tensor].shape;
  if (content_.by_sample) shape.insert(shape.begin(), sizes_[static_cast<size_t>(microbatch)]);
  return shape;
}

void Channel::open(std::span<const int64_t> sizes) {
  sizes_.assign(sizes.begin(), sizes.end());
  next_ = 0;
  if (local() || sends()) return;
  for (size_t i = 0; i < kPostedAhead; ++i) post_next();
}

// The engine's own limit is none here: what was posted early may be due much later. take() has one.
void Channel::post_next() {
  const int end = static_cast<int>(sizes_.size());
  while (next_ < end && sizes_[static_cast<size_t>(next_)] == 0) ++next_;
  if (next_ == end) return;
  Transfer& transfer = in_air_.emplace_back(Transfer{.microbatch = next_});
  transfer.header.resize(content_.tensors.size() + 1);
  for (size_t i = 0; i < content_.tensors.size(); ++i)
    transfer.tensors.push_back(
        at::empty(shape_of(i, next_), scalar_type_of(content_.tensors[i].dtype)));
  named("prepared for", transfer, [&] {
    const auto receive = [&](const MemorySpan& room) {
      transfer.works.push_back(group_.recv(room, content_.from.rank, content_.tag, kLongestLimit));
    };
    receive(span_of(std::span(transfer.header)));
    for (const at::Tensor& tensor : transfer.tensors) receive(span_of(tensor));
  });
  ++next_;
}

void Channel::put(int microbatch, Parcel parcel) {
  TUTTI_CHECK(parcel.tensors.size() == content_.tensors.size(), "{} tensors, expected {}",
              parcel.tensors.size(), content_.tensors.size());
  for (at::Tensor& tensor : parcel.tensors)
    if (tensor.defined()) tensor = packed(tensor);
  if (local()) return here_.push_back(std::move(parcel));
  while (!in_air_.empty() && is_done(in_air_.front())) in_air_.pop_front();
  Transfer& transfer = in_air_.emplace_back(Transfer{.microbatch = microbatch});
  transfer.header.push_back(parcel.calls);
  for (size_t i = 0; i < parcel.tensors.size(); ++i) {
    const at::Tensor& tensor = parcel.tensors[i];
    if (tensor.defined()) {
      const auto dims = dims_by_stride(tensor);
      transfer.header.push_back(code_of(dims));
      transfer.tensors.push_back(tensor.permute(dims));
    } else {  // what is posted for it has to be filled
      transfer.header.push_back(kUndefined);
      transfer.tensors.push_back(
          at::zeros(shape_of(i, microbatch), scalar_type_of(content_.tensors[i].dtype)));
    }
  }
  named("sent", transfer, [&] {
    const auto send = [&](const MemorySpan& data) {
      transfer.works.push_back(group_.send(data, content_.to.rank, content_.tag, kLongestLimit));
    };
    send(span_of(std::span(transfer.header)));
    for (const at::Tensor& tensor : transfer.tensors) send(span_of(tensor));
  });
}

Parcel Channel::take(int microbatch) {
  if (local()) {
    TUTTI_CHECK(!here_.empty(), "{} of microbatch {} is not there", content_.what, microbatch);
    Parcel parcel = std::move(here_.front());
    here_.pop_front();
    return parcel;
  }
  TUTTI_CHECK(!in_air_.empty() && in_air_.front().microbatch == microbatch,
              "{} of microbatch {} is not expected", content_.what, microbatch);
  wait(in_air_.front());
  Transfer transfer = std::move(in_air_.front());
  in_air_.pop_front();
  post_next();
  Parcel parcel{.calls = transfer.header[0]};
  for (size_t i = 0; i < transfer.tensors.size(); ++i) {
    const at::Tensor& memory = transfer.tensors[i];
    const int64_t code = transfer.header[i + 1];
    parcel.tensors.push_back(
        code == kUndefined ? at::Tensor() : in_memory_order(memory, dims_of(code, memory.dim())));
  }
  return parcel;
}

bool Channel::arrived() {
  if (local()) return !here_.empty();
  return !in_air_.empty() && is_done(in_air_.front());
}

void Channel::finish() {
  if (local() || !sends()) return;
  for (Transfer& transfer : in_air_) wait(transfer);
  in_air_.clear();
}

bool Channel::is_done(Transfer& transfer) {
  bool done = false;
  named("looked after", transfer, [&] {
    done = std::ranges::all_of(transfer.works, [](Work& work) { return work.test(); });
  });
  return done;
}

void Channel::wait(Transfer& transfer) {
  named("waited for", transfer, [&] {
    const Deadline deadline(limit_);
    for (Work& work : transfer.works) work.wait(deadline.left());
  });
}

void Channel::named(std::string_view verb, const Transfer& transfer,
                    const std::function<void()>& action) {
  const auto words = [&] {
    const End &here = sends() ? content_.from : content_.to,
              &there = sends() ? content_.to : content_.from;
    return fmt::format("{} {} {} of microbatch {} {} {}", name_of_stage(here.stage, here.rank),
                       verb, content_.what, transfer.microbatch, sends() ? "to" : "from",
                       name_of_stage(there.stage, there.rank));
  };
  with_words(words, action);
}

}  // namespace tutti::parallel::detail
