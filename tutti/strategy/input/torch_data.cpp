// Tensors, datasets and loaders of LibTorch.
#include "tutti/strategy/input/torch_data.h"

#include <fmt/format.h>
#include <torch/serialize.h>

#include <map>
#include <string>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/sha256.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/membership/membership.h"

namespace tutti::data {
namespace {

/// What all ranks say, by rank. Collective.
std::vector<std::string> words_of_all(Group group, const std::string& own) {
  std::vector<std::string> all;
  for (const auto& bytes : tutti::detail::bytes_of_all(
           group, std::as_bytes(std::span(own.data(), own.size())), kDefaultTimeLimit))
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return all;
}

void require_same(const Group& world, const std::string& own) {
  const std::vector<std::string> all = words_of_all(world, own);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (const auto difference = first_difference(all[0], all[rank]))
      throw Mismatch(fmt::format("BatchSampler: rank 0 has \"{}\", rank {} has \"{}\"",
                                 difference->first, rank, difference->other));
}

}  // namespace

Dataset from_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<Array> columns;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() == 0 || !tensor.is_cpu())
      throw UsageError(fmt::format(
          "from_tensors: column {}: expected a tensor [samples, ...] on the CPU, got {}",
          columns.size(),
          !tensor.defined()   ? "an undefined one"
          : tensor.dim() == 0 ? "a scalar"
                              : "one on " + tensor.device().str()));
    columns.push_back(tutti::array_of(tensor));
  }
  return from_arrays(std::move(columns));
}

struct BatchSampler::State {
  RankBatches batches;
  int64_t samples;
  int64_t batch;
  int ranks;
  int rank;
  BatchSamplerOptions options;
  bool told = false;  // by set_epoch(), which no epoch has followed yet
  int64_t epoch = -1;
  int64_t next_epoch = 0;
  int64_t next_first = 0;
  int64_t next_batch = 0;
  std::optional<Epoch> order{};

  // Of which batch an epoch has which samples.
  at::Tensor made_for() const {
    return at::tensor({samples, batch, int64_t{options.shuffle}, static_cast<int64_t>(options.seed),
                       int64_t{options.drop_last}, batches.num_batches()},
                      at::kLong);
  }
};

namespace {

std::string made_for_words(const at::Tensor& numbers) {
  const auto at = [&](int64_t i) { return numbers[i].item<int64_t>(); };
  return fmt::format("{} samples, batch {}, {}, seed {}, {}, {} batches an epoch", at(0), at(1),
                     at(2) != 0 ? "shuffled" : "as they lie", static_cast<uint64_t>(at(3)),
                     at(4) != 0 ? "drop_last" : "with the rest", at(5));
}

}  // namespace

BatchSampler::BatchSampler(const Group& world, int64_t samples, int64_t batch,
                           const BatchSamplerOptions& options) {
  AgreedLines lines;
  lines.add("samples", samples);
  lines.add("batch", batch);
  lines.add("shuffle", options.shuffle);
  lines.add("seed", options.seed);
  lines.add("drop_last", options.drop_last);
  if (world.size() > 1) require_same(world, lines.text());
  state_ =
      std::make_shared<State>(State{.batches = RankBatches(samples, batch, world.size(), options),
                                    .samples = samples,
                                    .batch = batch,
                                    .ranks = world.size(),
                                    .rank = world.rank(),
                                    .options = options});
}

void BatchSampler::reset(std::optional<size_t> new_size) {
  State& own = *state_;
  if (new_size && static_cast<int64_t>(*new_size) != own.samples)
    throw UsageError(
        fmt::format("BatchSampler: reset to {} samples, it was made for {}; make another one",
                    *new_size, own.samples));
  own.epoch = own.next_epoch;
  own.next_batch = own.next_first;
  own.order = own.batches.epoch(own.epoch);
  own.next_epoch = own.epoch + 1;
  own.next_first = 0;
  own.told = false;
}

std::optional<std::vector<size_t>> BatchSampler::next(size_t batch_size) {
  State& own = *state_;
  const auto asked = static_cast<int64_t>(batch_size);
  const int64_t part = own.batch / own.ranks;
  const bool is_part = asked == part || asked == (own.batch + own.ranks - 1) / own.ranks;
  if (asked != 1 && asked != own.batch && !is_part)
    throw UsageError(fmt::format(
        "BatchSampler: the DataLoader has a batch_size of {}, the sampler was made for global "
        "batches of {}, of which each of {} ranks has {}; leave batch_size out",
        asked, own.batch, own.ranks, part));
  if (!own.order) reset();
  if (own.next_batch >= own.batches.num_batches()) return std::nullopt;
  const std::vector<int64_t> rows = own.batches.rows(*own.order, own.next_batch++, own.rank);
  return std::vector<size_t>(rows.begin(), rows.end());
}

void BatchSampler::save(torch::serialize::OutputArchive& archive) const {
  const State& own = *state_;
  const bool goes_on = own.order && !own.told && own.next_batch < own.batches.num_batches();
  const int64_t epoch = goes_on ? own.epoch : own.next_epoch;
  const int64_t next = goes_on ? own.next_batch : own.next_first;
  archive.write("epoch", at::scalar_tensor(epoch, at::kLong), /*is_buffer=*/true);
  archive.write("next_batch", at::scalar_tensor(next, at::kLong), true);
  archive.write("made_for", own.made_for(), true);
}

void BatchSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, next, made_for;
  const at::Tensor here = state_->made_for();
  if (!archive.try_read("epoch", epoch, /*is_buffer=*/true) ||
      !archive.try_read("next_batch", next, true) ||
      !archive.try_read("made_for", made_for, true) || made_for.sizes() != here.sizes())
    throw DataError("BatchSampler: load: the archive has not what a BatchSampler saves");
  if (!at::equal(made_for, here))
    throw Mismatch(fmt::format("BatchSampler: load: saved of {}; this one is of {}",
                               made_for_words(made_for), made_for_words(here)));
  set_epoch(epoch.item<int64_t>(), next.item<int64_t>());
}

void BatchSampler::set_epoch(int64_t epoch, int64_t first) {
  if (epoch < 0 || first < 0 || first > state_->batches.num_batches())
    throw UsageError(
        fmt::format("BatchSampler: epoch {} from batch {} on; expected an epoch from 0, and a "
                    "batch from 0 to {}",
                    epoch, first, state_->batches.num_batches()));
  state_->next_epoch = epoch;
  state_->next_first = first;
  state_->told = true;
}

int64_t BatchSampler::epoch() const noexcept { return state_->epoch; }
int64_t BatchSampler::num_batches() const noexcept { return state_->batches.num_batches(); }
int64_t BatchSampler::batch_size(int64_t number) const {
  return state_->batches.batch_size(number);
}
int64_t BatchSampler::own_size(int64_t number) const {
  return share(state_->batches.batch_size(number), state_->ranks, state_->rank).size();
}

void require_unlike_batches(const Group& world, const at::Tensor& batch) {
  const std::string undefined = "undefined";
  std::string own = undefined;
  if (batch.defined()) {
    const at::Tensor plain = batch.detach().to(at::kCPU).contiguous();
    Sha256 sha;
    sha.update(plain.const_data_ptr(), plain.nbytes());
    own = sha.hex();
  }
  std::map<std::string, size_t> first_with;
  const std::vector<std::string> all = words_of_all(world, own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == undefined)
      throw UsageError(
          fmt::format("require_unlike_batches: the batch of rank {} is undefined; expected its "
                      "tensor of data",
                      rank));
    const auto [found, fresh] = first_with.emplace(all[rank], rank);
    if (fresh) continue;
    throw UsageError(fmt::format(
        "require_unlike_batches: ranks {} and {} have the same batch; expected samples of its own "
        "on "
        "each rank\n  the sampler of the DataLoader gives every rank the same: make the loader "
        "with "
        "data::BatchSampler(world, samples, batch), or draw with another seed on each rank",
        found->second, rank));
  }
}

namespace detail {

int64_t size_of_torch(std::optional<size_t> size) {
  if (!size)
    throw UsageError(
        "from_torch: the dataset does not know its size(), so that nobody can say which samples "
        "are "
        "whose; give it one, or make a generator of it (data::from_generator)");
  if (*size == 0) throw UsageError("from_torch: the dataset has no samples");
  return static_cast<int64_t>(*size);
}

Sample sample_of_torch(const std::vector<at::Tensor>& columns) {
  Sample sample;
  for (const at::Tensor& column : columns) {
    const char* const what = sample.columns.empty() ? "data" : "target";
    if (!column.defined() || !column.is_cpu())
      throw UsageError(
          fmt::format("from_torch: {} of an example: expected a tensor on the CPU, got {}", what,
                      column.defined() ? column.device().str() : "an undefined one"));
    sample.columns.push_back(tutti::array_of(column.detach()));
  }
  return sample;
}

std::vector<Column> columns_of_torch(const Sample& first) {
  std::vector<Column> columns;
  for (const Array& column : first.columns)
    columns.push_back({columns.empty() ? "x" : "y", column.dtype(), column.shape()});
  return columns;
}

}  // namespace detail
}  // namespace tutti::data
