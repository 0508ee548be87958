// The memory of parts: how much a part takes, whether there is that much, and whose is given back.
#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/data/loader/detail/work.h"

namespace tutti::data {
namespace {

// Rounded up to a line; at most what can be added up for all replicas.
int64_t bytes_of(const Column& column, int64_t rows) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t bytes = 0;
  bool fits = !__builtin_mul_overflow(size_of(column.dtype), rows, &bytes);
  for (int64_t size : column.shape) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  if (!fits || bytes > kMost)
    throw UsageError(
        fmt::format("loader: {} rows of column {} are too many bytes", rows, column.to_string()));
  return (bytes + 63) / 64 * 64;
}

}  // namespace

int64_t Loader::Work::bytes_of_part(const BatchPart& part, const std::vector<Column>& columns) {
  int64_t bytes = 0;
  for (const Column& column : columns) bytes += bytes_of(column, part.share.size());
  return bytes;
}

void Loader::Work::require_memory(int64_t bytes) const {
  const int64_t least = 2 * bytes * plan_.replicas;
  if (options_.memory == kAuto) return pool_->grow(2 * least);
  if (least > options_.memory)
    throw UsageError(fmt::format(
        "loader: memory {}: two parts of {} for each of {} replicas are the least that works: {}",
        size_words(options_.memory), size_words(bytes), plan_.replicas, size_words(least)));
}

// Throws nothing for want of memory that others hold: null.
Loader::Work::PartHandle Loader::Work::make_part(int64_t step, int replica) {
  auto part = std::make_shared<detail::Part>();
  part->step = step;
  part->replica = replica;
  part->of = plan_.part(step, replica);
  part->epoch = epoch_;
  const std::vector<Column> columns = epoch_->columns(part->of.batch);
  const int64_t rows = part->rows();
  const int64_t bytes = bytes_of_part(part->of, columns);
  std::shared_ptr<std::byte> memory;
  if (bytes > 0) {
    require_memory(bytes);
    memory = pool_->take(bytes, step);
    if (!memory) return nullptr;
  }
  int64_t offset = 0;
  part->batch.size = rows;
  for (const Column& column : columns) {
    std::vector<int64_t> shape{rows};
    shape.insert(shape.end(), column.shape.begin(), column.shape.end());
    part->batch.columns.push_back(
        memory ? Array::view(memory.get() + offset, column.dtype, std::move(shape), memory)
               : make_array(column.dtype, std::move(shape)));
    offset += bytes_of(column, rows);
  }
  return part;
}

// Called with mutex_ held. Gives back the memory of what would be taken last and nobody computes
// now; whoever takes it makes it again.
bool Loader::Work::drop_last() {
  const auto idle = std::find_if(parts_.rbegin(), parts_.rend(), [](const PartHandle& part) {
    return part->done == part->issued && part->rows() > 0 && !part->awaited;
  });
  if (idle == parts_.rend()) return false;
  parts_.erase(std::next(idle).base());
  return true;
}

}  // namespace tutti::data
