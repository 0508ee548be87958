#include "tutti/strategy/input/remote_data.h"

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti {
namespace {

data::Dataset checked(data::Dataset dataset) {
  if (dataset.num_samples() < 1) throw UsageError("BatchIterator: the dataset has no samples");
  return dataset;
}

}  // namespace

void coordinator::Codec<at::Tensor>::write(ValueWriter& writer, const at::Tensor& value) {
  if (!value.defined()) throw UsageError("an undefined tensor cannot travel to another process");
  if (!value.is_cpu() || value.layout() != at::kStrided)
    throw UsageError(
        fmt::format("a tensor on {} cannot travel to another process; call cpu(), "
                    "to_dense()",
                    value.device().str()));
  const at::Tensor dense = value.detach().contiguous();
  Codec<Array>::write(writer, Array::view(dense.data_ptr(), dtype_of(dense.scalar_type()),
                                          dense.sizes().vec(), nullptr));
}

at::Tensor coordinator::Codec<at::Tensor>::read(ValueReader& reader) {
  return tensor_of(Codec<Array>::read(reader));
}

BatchIterator::BatchIterator(data::Dataset dataset, uint64_t seed)
    : dataset_(checked(std::move(dataset))),
      seed_(seed),
      epoch_(dataset_.epoch({.epoch = 0, .seed = seed})) {}

std::vector<at::Tensor> BatchIterator::next() {
  std::vector<at::Tensor> columns;
  for (const Array& column : epoch_.batch(step_).columns) columns.push_back(tensor_of(column));
  if (++step_ == epoch_.num_batches()) {
    step_ = 0;
    epoch_ = dataset_.epoch({.epoch = ++number_, .seed = seed_});
  }
  return columns;
}

}  // namespace tutti
