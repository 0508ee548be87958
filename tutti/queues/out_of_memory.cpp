#include "tutti/queues/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tutti/base/error.h"
#include "tutti/base/host.h"

namespace tutti {
namespace detail {
namespace {

/// At most, of the whole batch, since it had not come to its end. 0: that cannot be told.
int64_t samples_that_fit(const MemoryNeed& need, const DeviceMemory& memory, int64_t asked,
                         int64_t most) {
  const int64_t others = memory.used;  // parameters, gradients, states, batches to come
  const int64_t batch = std::min(memory.peak, most) + asked - others;
  if (asked <= 0 || batch <= 0 || most <= others) return 0;
  return static_cast<int64_t>(static_cast<double>(need.global_samples) *
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

std::string memory_words(const MemoryNeed& need, const DeviceMemory& memory, int64_t asked) {
  const int64_t most = memory.limit > 0 ? std::min(memory.limit, memory.total) : memory.total;
  const int64_t in_use = std::min(std::max(memory.peak, memory.used), most);
  std::string words = fmt::format("{} of {} in use", size_words(in_use), size_words(most));
  if (asked > 0) words += fmt::format(", {} more asked for", size_words(asked));
  if (memory.limit > 0) words += " (limit from --memory-limit or set_memory_limit)";
  if (const int64_t fit = samples_that_fit(need, memory, asked, most);
      fit >= 1 && fit < need.global_samples)
    words +=
        fmt::format("\n  of the {} samples of the batch at most {} fit", need.global_samples, fit);
  if (need.trains)
    return words +
           "\n  try a smaller batch, of which several make one update (accumulate), or bfloat16";
  if (need.global_samples > 0) return words + "\n  try a smaller batch";
  return words +
         "\n  try a smaller model or batch, fewer replicas on the device, or another device";
}

}  // namespace detail

void throw_out_of_memory(const DeviceQueue& queue, const c10::OutOfMemoryError& error,
                         const MemoryNeed& need) {
  const std::string said = error.what_without_backtrace();
  if (!queue.on_device()) throw Error(fmt::format("out of memory {}: {}", need.where, said));
  throw Error(
      fmt::format("{}: out of memory {}: {}", queue.owner(), need.where,
                  detail::memory_words(need, DeviceRuntime::load().memory(queue.device().index()),
                                       detail::bytes_asked_for(said))));
}

}  // namespace tutti
