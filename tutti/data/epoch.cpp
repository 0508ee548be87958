// One epoch: batches laid out, samples computed and put in their places.

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/dataset.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data {
namespace detail {
namespace {

// A replacement that is damaged too is replaced again; so many times in a row is no accident.
constexpr uint64_t kMostReplacements = 16;
const std::string kPadding = "padding";

template <class T>
void fill(void* data, int64_t count, double value) {
  std::fill_n(static_cast<T*>(data), count, static_cast<T>(value));
}

void fill_with(DType dtype, void* data, int64_t count, double value) {
  switch (dtype) {
    case DType::boolean: return fill<bool>(data, count, value);
    case DType::uint8: return fill<uint8_t>(data, count, value);
    case DType::int8: return fill<int8_t>(data, count, value);
    case DType::uint16: return fill<uint16_t>(data, count, value);
    case DType::int16: return fill<int16_t>(data, count, value);
    case DType::uint32: return fill<uint32_t>(data, count, value);
    case DType::int32: return fill<int32_t>(data, count, value);
    case DType::uint64: return fill<uint64_t>(data, count, value);
    case DType::int64: return fill<int64_t>(data, count, value);
    case DType::float32: return fill<float>(data, count, value);
    case DType::float64: return fill<double>(data, count, value);
    case DType::float16:
    case DType::bfloat16: std::memset(data, 0, static_cast<size_t>(2 * count)); return;
  }
}

// `to` is row-major with sizes of at least those of `from`; the rest of it is left alone.
void copy_corner(const std::byte* from, std::span<const int64_t> sizes, std::byte* to,
                 std::span<const int64_t> to_sizes, int64_t element_bytes) {
  const auto row_bytes = [&](std::span<const int64_t> all) {
    return std::accumulate(all.begin() + 1, all.end(), element_bytes, std::multiplies<>());
  };
  if (sizes.empty() || std::ranges::equal(sizes.subspan(1), to_sizes.subspan(1))) {
    const int64_t rows = sizes.empty() ? 1 : sizes[0];
    const int64_t bytes = sizes.empty() ? element_bytes : rows * row_bytes(sizes);
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    copy_corner(from + i * row_bytes(sizes), sizes.subspan(1), to + i * row_bytes(to_sizes),
                to_sizes.subspan(1), element_bytes);
}

// Row `place` of a column's memory.
void put(const Array& value, const Array& column, int64_t place, double padding,
         const std::string& name) {
  const auto sizes = std::span(column.shape()).subspan(1);
  const int64_t rows = column.shape()[0];
  const int64_t elements = column.num_elements() / rows;
  auto* const to =
      static_cast<std::byte*>(column.data()) + place * elements * size_of(column.dtype());
  for (size_t d = 0; d < sizes.size(); ++d)
    if (value.shape()[d] > sizes[d])
      throw DataError(fmt::format("column \"{}\" is {}, longer than {}, to which it is padded",
                                  name, value.to_string(), shape_words(sizes)));
  if (value.num_elements() < elements) fill_with(column.dtype(), to, elements, padding);
  copy_corner(static_cast<const std::byte*>(value.data()), value.shape(), to, sizes,
              size_of(column.dtype()));
}

Array all_true(const std::vector<int64_t>& shape) {
  Array mask = make_array(DType::boolean, shape);
  std::ranges::fill(mask.as<bool>(), true);
  return mask;
}

}  // namespace

size_t Batching::bucket_of(int64_t id) const {
  const int64_t length = (*lengths)[static_cast<size_t>(id)];
  return static_cast<size_t>(std::ranges::upper_bound(boundaries, length) - boundaries.begin());
}

void count(Batching& batching, const View& view) {
  const int64_t all = view.num_samples;
  if (batching.batches.empty()) {
    const int64_t rest = all % batching.size;
    batching.num_samples = all - (batching.drop_remainder ? rest : 0);
    batching.num_batches = all / batching.size + (rest > 0 && !batching.drop_remainder ? 1 : 0);
    return;
  }
  if (!view.same_samples())
    throw UsageError(
        "bucket_by_length() behind samples that differ by the epoch (a take(), skip() or shard() "
        "of shuffled ones, weighted()): so would the number of batches");
  Order order = view.order({});
  const std::vector<int64_t> begins = lay_out(batching, order);
  batching.num_samples = order.size();
  batching.num_batches = std::ssize(begins) - 1;
}

std::vector<int64_t> lay_out(const Batching& batching, Order& order) {
  if (batching.batches.empty()) {
    if (batching.drop_remainder) {
      order.ids.resize(order.ids.size() - order.ids.size() % static_cast<size_t>(batching.size));
      if (!order.epochs.empty()) order.epochs.resize(order.ids.size());
    }
    return {};
  }
  std::vector<std::vector<int64_t>> open(batching.batches.size());
  std::vector<int64_t> places;
  std::vector<int64_t> begins{0};
  const auto close = [&](std::vector<int64_t>& bucket) {
    places.insert(places.end(), bucket.begin(), bucket.end());
    begins.push_back(std::ssize(places));
    bucket.clear();
  };
  for (size_t i = 0; i < order.ids.size(); ++i) {
    const size_t bucket = batching.bucket_of(order.ids[i]);
    open[bucket].push_back(static_cast<int64_t>(i));
    if (std::ssize(open[bucket]) == batching.batches[bucket]) close(open[bucket]);
  }
  for (std::vector<int64_t>& rest : open)
    if (!rest.empty() && !batching.drop_remainder) close(rest);
  order = order.picked(places);
  return begins;
}

std::exception_ptr at_sample(const Content& content, int64_t id, const std::string* stage,
                             const std::string& context) {
  std::string place = content.where(id);
  if (!context.empty()) place += ", " + context;
  if (stage != nullptr) place += ", in " + *stage;
  const auto said = [&](const std::exception& error) {
    std::string words = plain_words(error.what());
    if (stage != nullptr && words.starts_with(*stage + ": ")) words.erase(0, stage->size() + 2);
    return fmt::format("{}: {}", place, words);
  };
  try {
    throw;
  } catch (const UsageError& error) {
    return std::make_exception_ptr(UsageError(said(error)));
  } catch (const IoError& error) {
    return std::make_exception_ptr(IoError(said(error)));
  } catch (const Interrupted&) {
    return std::current_exception();
  } catch (const std::bad_alloc&) {
    return std::current_exception();
  } catch (const DataError& error) {
    return std::make_exception_ptr(DataError(said(error)));
  } catch (const Error& error) {
    return std::make_exception_ptr(Error(said(error)));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(DataError(said(error)));
  } catch (...) {
    return std::make_exception_ptr(
        DataError(said(std::runtime_error("threw what is no std::exception"))));
  }
}

Share EpochState::places(int64_t step) const {
  if (step < 0 || step >= batching->num_batches)
    throw UsageError(
        fmt::format("batch {} of an epoch of {} batches", step, batching->num_batches));
  if (!begins.empty())
    return {begins[static_cast<size_t>(step)], begins[static_cast<size_t>(step) + 1]};
  const int64_t begin = step * batching->size;
  return {begin, std::min(begin + batching->size, order.size())};
}

std::vector<Column> EpochState::columns(int64_t step) const {
  std::vector<Column> columns = batching->columns;
  if (!batching->sizes) return columns;
  const auto width = static_cast<size_t>(batching->num_sizes);
  std::vector<int64_t> longest(width, 0);
  const Share all = places(step);
  for (int64_t place = all.begin; place < all.end; ++place)
    for (size_t i = 0; i < width; ++i)
      longest[i] = std::max(
          longest[i],
          (*batching
                ->sizes)[static_cast<size_t>(order.ids[static_cast<size_t>(place)]) * width + i]);
  size_t next = 0;
  const size_t own = columns.size() - (batching->masked ? 1 : 0);
  for (size_t c = 0; c < own; ++c)
    for (int64_t& size : columns[c].shape)
      if (size == kAnySize) size = longest[next++];
  if (batching->masked) columns.back().shape = columns[*batching->masked].shape;
  return columns;
}

bool EpochState::plain() const {
  // With sizes given to padded_batch() nothing is looked up, but rows differ.
  return content->plain() != nullptr && batching->transforms.empty() &&
         std::ranges::all_of(content->columns(), &Column::fixed);
}

std::exception_ptr EpochState::located(int64_t step, int64_t row, Ref ref,
                                       const std::string* stage) const {
  return at_sample(
      *content, ref.id, stage,
      fmt::format("sample {} of batch {} of epoch {}", row + 1, step + 1, pass.epoch + 1));
}

Sample EpochState::sample_at(int64_t step, int64_t row, Reading& reading, BadSamples* bad) const {
  const auto place = static_cast<size_t>(places(step).begin + row);
  Ref ref = order.at(place);
  if (reading.seen != nullptr) reading.seen->row.store(row, std::memory_order_relaxed);
  for (uint64_t tries = 0;; ++tries) {
    try {
      return reading.remote != nullptr ? reading.remote->read(*content, ref, reading)
                                       : content->read(ref, reading);
    } catch (...) {
      const std::exception_ptr failure = located(step, row, ref, reading.stage);
      try {
        std::rethrow_exception(failure);
      } catch (const DataError& error) {
        if (bad == nullptr || tries == kMostReplacements) throw;
        bad->replaced(content->where(ref.id), error.what());
      }
    }
    const uint64_t key = random_key(pass.seed, RandomPurpose::replace,
                                    {static_cast<uint64_t>(order.epoch_at(place)),
                                     static_cast<uint64_t>(order.ids[place]), tries});
    // Padding was planned for this batch.
    const Share own = places(step);
    const Share among =
        batching->sizes && own.size() > 1 ? own : Share{0, static_cast<int64_t>(order.size())};
    ref = order.at(static_cast<size_t>(among.begin) +
                   RandomStream(key).below(static_cast<uint64_t>(among.size())));
  }
}

Sample EpochState::mixed(int64_t step, int64_t row, Sample own, Sample partner, bool alone) const {
  uint64_t number = 0;
  for (const BatchTransformHandle& transform : batching->transforms) {
    const uint64_t key =
        random_key(pass.seed, RandomPurpose::mix,
                   {static_cast<uint64_t>(pass.epoch), static_cast<uint64_t>(step), number++});
    Draw draw(key), same(key);
    try {
      Sample next = transform->apply(own, partner, alone, draw);
      partner = alone ? next : transform->apply(partner, own, alone, same);
      own = std::move(next);
      if (number == batching->transforms.size())
        require_shape(own, batching->columns, transform->name());
    } catch (...) {
      const std::string name = transform->name();
      const auto place = static_cast<size_t>(places(step).begin + row);
      std::rethrow_exception(located(step, row, order.at(place), &name));
    }
  }
  return own;
}

void EpochState::write(int64_t step, Share share, std::span<const Array> into, Reading& reading,
                       BadSamples* bad) const {
  const Share all = places(step);
  if (share.size() == 0) return;
  if (plain() && reading.remote == nullptr) {
    const auto rows = std::span(order.ids).subspan(static_cast<size_t>(all.begin + share.begin),
                                                   static_cast<size_t>(share.size()));
    try {
      const LeftTurn left(reading.turn);
      content->plain()->gather_into(rows, into);
      return;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception&) {  // one by one, to see which; each is tried again
    }
  }
  const auto put_row = [&](int64_t row, const Sample& sample) {
    try {
      const auto put_column = [&](const Array& value, size_t c, double padding) {
        put(value, into[c], row - share.begin, padding, batching->columns[c].name);
      };
      for (size_t c = 0; c < sample.columns.size(); ++c)
        put_column(sample.columns[c], c, batching->padding.empty() ? 0 : batching->padding[c]);
      if (batching->masked)
        put_column(all_true(sample.columns[*batching->masked].shape()), into.size() - 1, 0);
    } catch (const DataError&) {
      std::rethrow_exception(
          located(step, row, order.at(static_cast<size_t>(all.begin + row)), &kPadding));
    }
  };
  for (int64_t row = share.begin; row < share.end; ++row) {
    Sample own = sample_at(step, row, reading, bad);
    if (batching->transforms.empty()) {
      put_row(row, own);
      continue;
    }
    const int64_t other = row ^ 1;
    const bool alone = other >= all.size();
    const Sample partner = alone ? own : sample_at(step, other, reading, bad);
    put_row(row, mixed(step, row, own, partner, alone));
    if (alone || other < row || other >= share.end) continue;
    put_row(other, mixed(step, other, partner, own, alone));
    ++row;
  }
}

}  // namespace detail

int64_t Epoch::num_samples() const noexcept { return state_->order.size(); }

int64_t Epoch::num_batches() const noexcept { return state_->batching->num_batches; }

int64_t Epoch::batch_size(int64_t step) const { return state_->places(step).size(); }

int64_t Epoch::first_sample(int64_t step) const { return state_->places(step).begin; }

std::span<const int64_t> Epoch::rows(int64_t step) const {
  const Share places = state_->places(step);
  return std::span(state_->order.ids)
      .subspan(static_cast<size_t>(places.begin), static_cast<size_t>(places.size()));
}

std::vector<Column> Epoch::columns(int64_t step) const { return state_->columns(step); }

namespace {

// None where a row cannot be read: one by one it shows which.
std::optional<Batch> gathered(const Source& source, std::span<const int64_t> rows) {
  try {
    return source.gather(rows);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Batch Epoch::part(int64_t step, Share share) const {
  const auto whole = rows(step);
  if (share.begin < 0 || share.begin > share.end || share.end > static_cast<int64_t>(whole.size()))
    throw UsageError(fmt::format("samples [{}, {}) of batch {}, which has {}", share.begin,
                                 share.end, step, whole.size()));
  if (state_->plain()) {
    const Source& source = *state_->content->plain();
    const auto wanted =
        whole.subspan(static_cast<size_t>(share.begin), static_cast<size_t>(share.size()));
    if (auto batch = gathered(source, wanted)) {
      detail::require_gathered(source, *batch, wanted, fmt::format("batch {}: ", step));
      return std::move(*batch);
    }
  }
  Batch batch{.columns = {}, .size = share.size()};
  for (const Column& column : columns(step))
    batch.columns.push_back(make_column(column, batch.size));
  detail::Reading reading(*state_->session);
  state_->write(step, share, batch.columns, reading, nullptr);
  return batch;
}

Batch Epoch::batch(int64_t step) const { return part(step, {0, batch_size(step)}); }

}  // namespace tutti::data
