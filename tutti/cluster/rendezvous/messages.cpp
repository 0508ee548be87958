#include "tutti/cluster/rendezvous/detail/messages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "tutti/base/typed.h"

namespace tutti::detail {
namespace {

constexpr std::array<std::string_view, 7> kWords = {"joined", "lost",     "share", "refused",
                                                    "failed", "replicas", "grace"};
// What fits beside the words in one message of a channel.
constexpr size_t kMaxText = 8 << 10;

/// Takes the text up to the next space off the front.
std::string_view next_word(std::string_view& rest) {
  const size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

}  // namespace

std::string encode(const Notice& message) {
  return fmt::format("{} {} {} {}", kWords[static_cast<size_t>(message.kind)], message.worker,
                     message.number, std::string_view(message.text).substr(0, kMaxText));
}

Notice joined_notice(const std::vector<int>& workers) {
  return {.kind = Notice::Kind::joined,
          .worker = workers.front(),
          .number = 0,
          .text = fmt::format("{}", fmt::join(workers.begin() + 1, workers.end(), " "))};
}

std::vector<int> joined_workers(const Notice& message) {
  std::vector<int> workers = {message.worker};
  std::string_view rest = message.text;
  while (!rest.empty()) {
    if (const auto worker = tutti::number_in<int>(next_word(rest))) workers.push_back(*worker);
  }
  return workers;
}

std::optional<Notice> decode(std::string_view text) {
  const std::string_view word = next_word(text);
  for (size_t i = 0; i < kWords.size(); ++i) {
    if (word != kWords[i]) continue;
    const auto worker = tutti::number_in<int>(next_word(text));
    const auto count = tutti::number_in<int>(next_word(text));
    if (!worker || !count) return std::nullopt;
    return Notice{static_cast<Notice::Kind>(i), *worker, *count, std::string(text)};
  }
  return std::nullopt;
}

}  // namespace tutti::detail
