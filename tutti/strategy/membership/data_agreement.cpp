#include "tutti/strategy/membership/detail/data_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/data/detail/cache.h"

namespace tutti::detail {
namespace {

// ---- what a digest of samples looks at ----

constexpr int64_t kFirst = 8;  // where they come one after another
constexpr int64_t kBytes = 1 << 20;
constexpr int64_t kLeast = 64;
constexpr int64_t kMost = 1024;

// 0: sizes vary.
int64_t bytes_of_sample(const data::Dataset& dataset) {
  int64_t bytes = 0;
  for (const data::Column& column : dataset.columns()) {
    if (!column.fixed()) return 0;
    bytes += bytes_of_shape(column.dtype, column.shape).value_or(kBytes);
  }
  return bytes;
}

void add_sample(Sha256& sha, const data::Epoch& epoch, int64_t step, int64_t row) {
  try {
    for (const Array& column : epoch.part(step, {row, row + 1}).columns) {
      sha.update(column.to_string());
      sha.update(column.data(), static_cast<size_t>(column.num_bytes()));
    }
  } catch (const DataError&) {
    sha.update("damaged");
  }
}

}  // namespace

int64_t samples_of_digest(const data::Dataset& dataset) {
  const int64_t all = dataset.num_samples();
  if (dataset.sequential()) return std::min(all, kFirst);
  const int64_t bytes = bytes_of_sample(dataset);
  return std::min(all, bytes == 0 ? kLeast : std::clamp(kBytes / bytes, kLeast, kMost));
}

std::string digest_of(const data::Dataset& dataset, uint64_t seed) {
  const data::Epoch epoch = dataset.epoch({.seed = seed});
  const int64_t count = std::min(samples_of_digest(dataset), epoch.num_samples());
  // Of a generator the first ones.
  const int64_t last = (dataset.sequential() ? count : epoch.num_samples()) - 1;
  Sha256 sha;
  int64_t step = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = count == 1 ? 0 : i * last / (count - 1);
    while (at >= epoch.first_sample(step) + epoch.batch_size(step)) ++step;
    add_sample(sha, epoch, step, at - epoch.first_sample(step));
  }
  return sha.hex();
}

void add_shape(AgreedLines& lines, std::string_view what, const data::Dataset& dataset) {
  std::vector<std::string> columns;
  for (const data::Column& column : dataset.columns())
    columns.push_back(fmt::format("{} [{}]", name_of(column.dtype), fmt::join(column.shape, ", ")));
  const size_t caches = data::detail::caches_of(dataset).size();
  lines.add(what,
            fmt::format("{} samples of {} in batches of {}{}", dataset.num_samples(),
                        fmt::join(columns, ", "), dataset.global_batch_size(),
                        caches == 0 ? "" : fmt::format(" behind {} cache() in memory", caches)));
  lines.add(fmt::format("{}, batches", what), dataset.num_batches());
  for (size_t i = 0; i < dataset.columns().size(); ++i)
    lines.add(fmt::format("{}, column {}", what, i), dataset.columns()[i].name);
  for (size_t label = 0; label < dataset.classes().size(); ++label)
    lines.add(fmt::format("{}, class {}", what, label), dataset.classes()[label]);
}

void add_digest(AgreedLines& lines, std::string_view what, const data::Dataset& dataset,
                uint64_t seed) {
  lines.add(fmt::format("{}, sha256 of {} samples from the first to the last", what,
                        samples_of_digest(dataset)),
            digest_of(dataset, seed));
}

}  // namespace tutti::detail
