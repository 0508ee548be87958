#include "tutti/data/rank_batches.h"

#include <memory>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/share.h"

namespace tutti::data {
namespace {

/// Samples of which nobody asks for more than the numbers.
class Numbers final : public Source {
 public:
  explicit Numbers(int64_t count) : count_(count) {}
  int64_t num_rows() const override { return count_; }
  const std::vector<Column>& columns() const override { return columns_; }
  Batch gather(std::span<const int64_t> rows) const override {
    return {.columns = {array_of(std::vector<int64_t>(rows.begin(), rows.end()),
                                 {static_cast<int64_t>(rows.size())})},
            .size = static_cast<int64_t>(rows.size())};
  }

 private:
  int64_t count_;
  std::vector<Column> columns_{{"number", DType::int64, {}}};
};

Dataset numbers_to(int64_t samples, int64_t batch, const RankBatchesOptions& options) {
  const Dataset all(std::make_shared<Numbers>(samples));
  return (options.shuffle ? all.shuffle() : all).batch(batch);
}

void require_numbers(int64_t samples, int64_t batch, int ranks) {
  if (ranks < 1)
    throw UsageError(fmt::format("batches of ranks: {} ranks, expected 1 or more", ranks));
  if (batch < ranks)
    throw UsageError(fmt::format(
        "batches of ranks: batch is {}, there are {} ranks; expected the global batch, a sample or "
        "more of each",
        batch, ranks));
  if (samples < ranks)
    throw UsageError(
        fmt::format("batches of ranks: {} samples for {} ranks; expected one or more for each",
                    samples, ranks));
}

int64_t batches_of(int64_t samples, int64_t batch, int ranks, bool drop_last) {
  const int64_t whole = samples / batch, rest = samples % batch;
  if (drop_last && whole == 0)
    throw UsageError(
        fmt::format("batches of ranks: drop_last leaves nothing of {} samples in batches of {}",
                    samples, batch));
  return drop_last || (rest < ranks && whole > 0) ? whole : whole + 1;
}

}  // namespace

RankBatches::RankBatches(int64_t samples, int64_t batch, int ranks, RankBatchesOptions options)
    : samples_((require_numbers(samples, batch, ranks), samples)),
      batch_(batch),
      ranks_(ranks),
      options_(options),
      num_batches_(batches_of(samples, batch, ranks, options.drop_last)),
      numbers_(numbers_to(samples, batch, options)) {}

int64_t RankBatches::batch_size(int64_t number) const {
  if (number < 0 || number >= num_batches_)
    throw UsageError(fmt::format("batches of ranks: batch {} of {}, from 0", number, num_batches_));
  const bool last = number + 1 == num_batches_ && !options_.drop_last;
  return last ? samples_ - number * batch_ : batch_;
}

Epoch RankBatches::epoch(int64_t number) const {
  return numbers_.epoch({.epoch = number, .seed = options_.seed});
}

std::vector<int64_t> RankBatches::rows(const Epoch& epoch, int64_t number, int rank) const {
  const Share own = share(batch_size(number), ranks_, rank);
  std::vector<int64_t> rows;
  for (int64_t place = own.begin; place < own.end; ++place) {
    const int64_t batch = number + place / batch_;  // what is left over lies in the one behind
    rows.push_back(epoch.rows(batch)[static_cast<size_t>(place % batch_)]);
  }
  return rows;
}

}  // namespace tutti::data
