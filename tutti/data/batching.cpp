// How samples become batches: of one size, padded, by length, and transformed as a whole.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/data/dataset.h"
#include "tutti/data/detail/content.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data {
namespace {

void require_fixed_shapes(const std::vector<Column>& columns, const char* who) {
  for (const Column& column : columns)
    if (!column.fixed())
      throw UsageError(fmt::format(
          "{}: rows of column \"{}\" differ in shape, {}; give them one (resize, a map) or use "
          "padded_batch",
          who, column.name, shape_words(column.shape)));
}

detail::Batching batching_of(int64_t global_size, std::vector<Column> columns) {
  if (global_size < 1)
    throw UsageError(fmt::format("batch({}): expected a global batch of 1 or more", global_size));
  return {.size = global_size, .columns = std::move(columns)};
}

int sizes_that_vary(const std::vector<Column>& columns) {
  int64_t count = 0;
  for (const Column& column : columns) count += std::ranges::count(column.shape, kAnySize);
  return static_cast<int>(count);
}

bool holds(DType dtype, double value) {
  if (dtype == DType::float16 || dtype == DType::bfloat16) return value == 0;
  if (is_floating(dtype)) return true;
  if (dtype == DType::boolean) return value == 0 || value == 1;
  const bool has_sign = dtype == DType::int8 || dtype == DType::int16 || dtype == DType::int32 ||
                        dtype == DType::int64;
  const double end = std::ldexp(1.0, static_cast<int>(8 * size_of(dtype)) - (has_sign ? 1 : 0));
  return value == std::trunc(value) && value >= (has_sign ? -end : 0) && value < end;
}

std::vector<double> padding_of(const std::vector<Column>& columns, const PadOptions& options) {
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  for (const auto& [name, value] : options.values)
    if (std::ranges::find(names, name) == names.end())
      throw UsageError("PadOptions::values: " + unknown_message("column", name, names));
  std::vector<double> padding;
  for (const Column& column : columns) {
    const auto own = options.values.find(column.name);
    padding.push_back(own == options.values.end() ? options.value : own->second);
    if (!column.fixed() && !holds(column.dtype, padding.back()))
      throw UsageError(fmt::format("padding of column \"{}\": {} is no value of {}", column.name,
                                   padding.back(), name_of(column.dtype)));
  }
  return padding;
}

/// One more column, of the shape that the one it is of is padded to.
void add_mask(detail::Batching& batching, const std::vector<Column>& columns,
              const std::string& of) {
  std::vector<std::string> padded;
  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].fixed()) continue;
    padded.push_back(columns[c].name);
    if (columns[c].name == of) batching.masked = c;
  }
  if (!batching.masked)
    throw UsageError("PadOptions::mask_of: " + unknown_message("padded column", of, padded));
  batching.columns.push_back({"mask", DType::boolean, batching.columns[*batching.masked].shape});
}

// Looks at all samples, unless sizes are given.
void pad(detail::Batching& batching, const detail::Content& content, const detail::View& view,
         const PadOptions& options) {
  const std::vector<Column>& columns = content.columns();
  const int width = sizes_that_vary(columns);
  batching.padding = padding_of(columns, options);
  batching.drop_remainder = options.drop_remainder;
  if (!options.sizes.empty()) {
    if (std::ssize(options.sizes) != width)
      throw UsageError(
          fmt::format("PadOptions::sizes: got {}, expected one for each of the {} sizes "
                      "that vary",
                      options.sizes.size(), width));
    constexpr int64_t kMost = int64_t{1} << 40;
    for (int64_t size : options.sizes)
      if (size < 0 || size > kMost)
        throw UsageError(fmt::format("PadOptions::sizes: [{}]: expected 0 to {}",
                                     fmt::join(options.sizes, ", "), kMost));
    auto next = options.sizes.begin();
    for (Column& column : batching.columns)
      for (int64_t& size : column.shape)
        if (size == kAnySize) size = *next++;
  }
  if (!options.mask_of.empty()) add_mask(batching, columns, options.mask_of);
  if (width == 0 || !options.sizes.empty()) return;
  if (content.sequential())
    throw UsageError(
        "padded_batch(): samples come from a generator, one after another, so that nobody knows "
        "the "
        "longest of a batch before; give PadOptions::sizes, to which all are padded");
  batching.num_sizes = width;
  batching.sizes = std::make_shared<const std::vector<int64_t>>(detail::keys_of(
      content, view, width, "padded_batch()", [&columns](const Sample& sample, int64_t* sizes) {
        for (size_t c = 0; c < columns.size(); ++c)
          for (size_t d = 0; d < columns[c].shape.size(); ++d)
            if (columns[c].shape[d] == kAnySize) *sizes++ = sample.columns[c].shape()[d];
      }));
}

}  // namespace

Dataset Dataset::batch(int64_t global_size, bool drop_remainder) const {
  detail::Batching batching = batching_of(global_size, content_->columns());
  require_fixed_shapes(content_->columns(), "batch()");
  batching.drop_remainder = drop_remainder;
  return batched(std::move(batching));
}

Dataset Dataset::padded_batch(int64_t global_size, const PadOptions& options) const {
  detail::Batching batching = batching_of(global_size, content_->columns());
  pad(batching, *content_, *view_, options);
  return batched(std::move(batching));
}

Dataset Dataset::bucket_by_length(BucketOptions options) const {
  const auto& columns = content_->columns();
  if (options.column < 0 || options.column >= std::ssize(columns) ||
      columns[static_cast<size_t>(options.column)].shape.empty())
    throw UsageError(
        fmt::format("bucket_by_length: column {} has no length, or is not there", options.column));
  const bool ascending = std::ranges::adjacent_find(options.boundaries, std::greater_equal<>()) ==
                         options.boundaries.end();
  if (!ascending || options.batches.size() != options.boundaries.size() + 1 ||
      std::ranges::min(options.batches) < 1)
    throw UsageError(
        fmt::format("bucket_by_length: boundaries [{}], batches [{}]: expected ascending lengths, "
                    "and one batch "
                    "size of 1 or more for each of the {} buckets",
                    fmt::join(options.boundaries, ", "), fmt::join(options.batches, ", "),
                    options.boundaries.size() + 1));
  detail::Batching batching = batching_of(std::ranges::max(options.batches), columns);
  pad(batching, *content_, *view_, options.pad);
  const auto column = static_cast<size_t>(options.column);
  batching.lengths = std::make_shared<const std::vector<int64_t>>(detail::keys_of(
      *content_, *view_, 1, "bucket_by_length()", [column](const Sample& sample, int64_t* length) {
        *length = sample.columns[column].shape()[0];
      }));
  batching.boundaries = std::move(options.boundaries);
  batching.batches = std::move(options.batches);
  return batched(std::move(batching));
}

Dataset Dataset::map(BatchTransformHandle transform) const {
  if (!transform) throw UsageError("map: expected a transform, got a null pointer");
  if (!batching_)
    throw UsageError(
        fmt::format("{} is for whole batches: put it behind batch()", transform->name()));
  if (sizes_that_vary(content_->columns()) > 0)
    throw UsageError(
        fmt::format("{} behind padding: samples of a batch have to be equally long "
                    "before it",
                    transform->name()));
  detail::Batching batching = *batching_;
  batching.columns = transform->columns(batching.columns);
  batching.transforms.push_back(std::move(transform));
  return batched(std::move(batching));
}

Dataset Dataset::batched(detail::Batching batching) const {
  detail::count(batching, *view_);
  Dataset next = *this;
  next.batching_ = std::make_shared<const detail::Batching>(std::move(batching));
  return next;
}

Dataset detail::Combining::rebatched(const Dataset& dataset, int64_t global_size) {
  Batching batching = dataset.batching();
  if (!batching.batches.empty())
    throw UsageError("bucket_by_length() has batch sizes of its own, which are not cut again");
  batching.size = global_size;
  return dataset.batched(std::move(batching));
}

}  // namespace tutti::data
