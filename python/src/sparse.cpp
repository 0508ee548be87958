// All-reduce of sparse (COO) tensors in two stages.
//
// 1. all-gather of what each rank has: sizes of the tensor and the number of its entries (nnz).
// 2. all-gather of indices and of values, of unequal lengths; then all are added, in rank order.

#include <ATen/ATen.h>

#include "backend.h"
#include "tensors.h"

namespace tutti::python {
namespace {

constexpr int64_t kMostDims = 16;
// sparse_dim, dense_dim, nnz, then the sizes.
constexpr int64_t kFacts = 3 + kMostDims;

class SparseAllReduce final : public TensorCall {
 public:
  SparseAllReduce(c10::intrusive_ptr<TuttiWork> work, const at::Tensor& tensor, int size,
                  Millis limit)
      : TensorCall(std::move(work)),
        result_(tensor),
        mine_(tensor.detach().coalesce()),
        size_(size),
        limit_(limit) {
    TORCH_CHECK(mine_.dim() <= kMostDims, "tutti::allreduce: sparse tensor of ", mine_.dim(),
                " dimensions; at most ", kMostDims, " are possible");
    has_stages = true;
    facts_ = at::zeros({kFacts}, at::kLong);
    auto* facts = facts_.mutable_data_ptr<int64_t>();
    facts[0] = mine_.sparse_dim();
    facts[1] = mine_.dense_dim();
    facts[2] = mine_._nnz();
    for (int64_t d = 0; d < mine_.dim(); ++d) facts[3 + d] = mine_.size(d);
    all_facts_ = at::empty({size_, kFacts}, at::kLong);
    operations.push_back({.collective = Collective::all_gather,
                          .input = span_of(facts_),
                          .output = span_of(all_facts_),
                          .limit = limit_});
    at_end = [this] { add_up(); };
  }

  bool next_stage() override {
    if (indices_.defined()) return false;
    check_alike();
    const int64_t sparse_dim = mine_.sparse_dim();
    const int64_t value_numel = mine_._values().numel() / std::max<int64_t>(mine_._nnz(), 1);
    // Without entries here the shape of one is that of the dense dimensions.
    int64_t per_entry = 1;
    for (int64_t d = sparse_dim; d < mine_.dim(); ++d) per_entry *= mine_.size(d);
    TORCH_CHECK(mine_._nnz() == 0 || value_numel == per_entry, "sparse values of unusual shape");
    int64_t total = 0;
    std::vector<int64_t> index_counts, value_counts;
    for (int r = 0; r < size_; ++r) {
      const int64_t nnz = all_facts_[r][2].item<int64_t>();
      counts_.push_back(nnz);
      index_counts.push_back(nnz * sparse_dim);
      value_counts.push_back(nnz * per_entry);
      total += nnz;
    }
    my_indices_ = mine_._indices().t().contiguous();
    my_values_ = mine_._values().contiguous();
    indices_ = at::empty({total, sparse_dim}, at::kLong);
    auto value_sizes = my_values_.sizes().vec();
    value_sizes[0] = total;
    values_ = at::empty(value_sizes, my_values_.options());
    operations = {{.collective = Collective::all_gather,
                   .input = span_of(my_indices_),
                   .output = span_of(indices_),
                   .output_counts = std::move(index_counts),
                   .limit = limit_},
                  {.collective = Collective::all_gather,
                   .input = span_of(my_values_),
                   .output = span_of(values_),
                   .output_counts = std::move(value_counts),
                   .limit = limit_}};
    return true;
  }

 private:
  void check_alike() const {
    for (int r = 0; r < size_; ++r) {
      const auto theirs = all_facts_[r];
      const bool alike = theirs[0].equal(facts_[0]) && theirs[1].equal(facts_[1]) &&
                         theirs.slice(0, 3).equal(facts_.slice(0, 3));
      TORCH_CHECK(alike, "tutti::allreduce: sparse tensor sizes do not match rank ", r, "'s");
    }
  }

  void add_up() {
    at::Tensor sum;
    int64_t begin = 0;
    for (const int64_t nnz : counts_) {
      const auto part = at::_sparse_coo_tensor_unsafe(indices_.narrow(0, begin, nnz).t(),
                                                      values_.narrow(0, begin, nnz), mine_.sizes(),
                                                      values_.options().layout(at::kSparse));
      sum = sum.defined() ? sum.add(part) : part;
      begin += nnz;
    }
    result_.copy_(sum.coalesce());
  }

  at::Tensor result_, mine_, facts_, all_facts_;
  at::Tensor my_indices_, my_values_, indices_, values_;
  std::vector<int64_t> counts_;  // entries of each rank
  const int size_;
  const Millis limit_;
};

}  // namespace

std::shared_ptr<TensorCall> make_sparse_all_reduce(c10::intrusive_ptr<TuttiWork> work,
                                                   const at::Tensor& tensor, int size,
                                                   Millis limit) {
  return std::make_shared<SparseAllReduce>(std::move(work), tensor, size, limit);
}

}  // namespace tutti::python
