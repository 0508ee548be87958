#include "tutti/train/model/detail/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

std::string bytes_words(int64_t bytes) {
  constexpr double kMega = 1e6, kGiga = 1e9;
  const auto number = static_cast<double>(bytes);
  return number < kGiga ? fmt::format("{:.0f} MB", number / kMega)
                        : fmt::format("{:.1f} GB", number / kGiga);
}

/// At most, of the whole batch, since it had not come to its end. 0: that cannot be told.
int64_t samples_that_fit(const OutOfMemory& work, const DeviceMemory& memory, int64_t asked,
                         int64_t most) {
  const int64_t others = memory.used;  // parameters, gradients, states, batches to come
  const int64_t batch = std::min(memory.peak, most) + asked - others;
  if (asked <= 0 || batch <= 0 || most <= others) return 0;
  return static_cast<int64_t>(static_cast<double>(work.global_samples) *
                              static_cast<double>(most - others) / static_cast<double>(batch));
}

}  // namespace

int64_t bytes_asked_for(std::string_view words) {
  constexpr std::string_view kBegin = "Tried to allocate ";
  const size_t begin = words.find(kBegin);
  if (begin == std::string_view::npos) return 0;
  words.remove_prefix(begin + kBegin.size());
  double number = 0;
  const auto [end, failed] = std::from_chars(words.data(), words.data() + words.size(), number);
  if (failed != std::errc()) return 0;
  words.remove_prefix(static_cast<size_t>(end - words.data()));
  const auto unit = [&](std::string_view name) { return words.starts_with(name); };
  const double bytes = unit(" GiB") ? 1 << 30 : unit(" MiB") ? 1 << 20 : unit(" KiB") ? 1 << 10 : 1;
  return static_cast<int64_t>(number * bytes);
}

std::string memory_words(const OutOfMemory& work, const DeviceMemory& memory, int64_t asked) {
  const int64_t most =
      work.limit_bytes > 0 ? std::min(work.limit_bytes, memory.total) : memory.total;
  const int64_t in_use = std::min(std::max(memory.peak, memory.used), most);
  std::string words = fmt::format("{:.1f} of {:.1f} GB in use", static_cast<double>(in_use) / 1e9,
                                  static_cast<double>(most) / 1e9);
  if (asked > 0) words += fmt::format(", {} more asked for", bytes_words(asked));
  if (work.limit_bytes > 0) words += " (limit from --memory-limit)";
  if (const int64_t fit = samples_that_fit(work, memory, asked, most);
      fit >= 1 && fit < work.global_samples)
    words +=
        fmt::format("\n  of the {} samples of the batch at most {} fit", work.global_samples, fit);
  return words +
         "\n  try a smaller batch, of which several make one update (accumulate), or bfloat16";
}

void throw_out_of_memory(const ReplicaContext& replica, const c10::OutOfMemoryError& error,
                         const OutOfMemory& work) {
  const std::string said = error.what_without_backtrace();
  if (!replica.queue().on_device())
    throw Error(
        fmt::format("replica {}: out of memory in {}: {}", replica.rank(), work.where, said));
  throw Error(fmt::format("{}: out of memory in {}: {}", replica.queue().owner(), work.where,
                          memory_words(work, DeviceRuntime::load().memory(replica.device().index()),
                                       bytes_asked_for(said))));
}

}  // namespace tutti::detail
