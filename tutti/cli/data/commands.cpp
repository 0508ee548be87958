#include "tutti/cli/data/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/stop.h"
#include "tutti/cli/on_all_cores.h"
#include "tutti/train/report/progress.h"

namespace tutti::cli {
namespace {

// Samples of varying shape make no batch: each is taken out of the pipeline where it is made, by
// the thread that asks for it.
thread_local data::Sample* taken_sample = nullptr;

data::Sample take_out(data::Sample sample) {
  *taken_sample = std::move(sample);
  return {{data::scalar(uint8_t{1})}};
}

}  // namespace

void show_progress(int64_t done, int64_t all, const std::string& words) {
  constexpr int64_t kWidth = 30;
  if (isatty(STDERR_FILENO) == 0) return;
  const auto full = static_cast<size_t>(all > 0 ? done * kWidth / all : kWidth);
  say_to(stderr, "\r[{:<{}}] {}{}", std::string(full, '#'), kWidth, words, done >= all ? "\n" : "");
}

std::string megabytes_of(int64_t done_bytes, int64_t all_bytes) {
  return fmt::format("{} of {} MB", with_commas(static_cast<double>(done_bytes) / 1e6),
                     with_commas(static_cast<double>(all_bytes) / 1e6));
}

std::string damage_words(std::string words) {
  const size_t batch = words.find(", sample 1 of batch ");
  const size_t end = batch == std::string::npos ? batch : words.find(": ", batch);
  if (end != std::string::npos) words.erase(batch, end - batch);
  // Pipeline and source may both say where.
  const size_t colon = words.find(": ");
  const std::string place = colon == std::string::npos ? "" : words.substr(0, colon + 2);
  if (words.substr(place.size()).starts_with(place)) words.erase(0, place.size());
  return words;
}

SamplesInOrder::SamplesInOrder(const data::Dataset& dataset)
    : epoch_(dataset.map(take_out, {.name = "take_out", .columns = {{"taken", DType::uint8, {}}}})
                 .batch(1)
                 .epoch({})) {}

std::optional<data::Sample> SamplesInOrder::next() {
  if (taken_ == ready_.size()) read_more();
  if (taken_ == ready_.size()) return std::nullopt;
  return std::move(ready_[taken_++]);
}

void SamplesInOrder::read_more() {
  constexpr int64_t kSamplesAtOnce = 64;
  throw_if_stop_requested("data");
  const int64_t end = std::min(begin_ + kSamplesAtOnce, all());
  ready_.assign(static_cast<size_t>(end - begin_), {});
  std::vector<std::string> troubles(ready_.size());
  on_all_cores(begin_, end, [&](int64_t i) {
    const auto at = static_cast<size_t>(i - begin_);
    try {
      taken_sample = &ready_[at];
      epoch_.part(i, {0, 1});
    } catch (const std::exception& error) {
      troubles[at] = damage_words(error.what());
    }
  });
  for (const std::string& trouble : troubles)
    if (!trouble.empty()) throw DataError(trouble);
  begin_ = end;
  taken_ = 0;
}

}  // namespace tutti::cli
