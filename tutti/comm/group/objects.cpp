#include "tutti/comm/group/objects.h"

#include <fmt/format.h>

#include <exception>
#include <numeric>
#include <optional>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr int64_t kFailed = -1;  // for a length: the rank has nothing to send

[[noreturn]] void throw_failed(std::string_view operation, size_t rank) {
  throw detail::FailedElsewhere(fmt::format(
      "{}: rank {} could not write its value; its own message says why", operation, rank));
}

MemorySpan bytes_of(std::string& text) { return {text.data(), std::ssize(text), DType::uint8}; }

// `own` counts on the root alone; none: it has failed there.
std::string broadcast_text(Group& group, std::optional<std::string> own, int root, Limit limit,
                           std::string_view operation) {
  if (root < 0 || root >= group.size())
    throw UsageError(
        fmt::format("{}: root is {}, expected 0 to {}", operation, root, group.size() - 1));
  int64_t length = own ? std::ssize(*own) : kFailed;
  group.broadcast(span_of(std::span(&length, 1)), root, limit).wait();
  if (length == kFailed) throw_failed(operation, static_cast<size_t>(root));
  std::string text = group.rank() == root ? *std::move(own) : std::string();
  text.resize(static_cast<size_t>(length));
  group.broadcast(bytes_of(text), root, limit).wait();
  return text;
}

std::vector<std::string> all_gather_text(Group& group, std::optional<std::string> own, Limit limit,
                                         std::string_view operation) {
  int64_t length = own ? std::ssize(*own) : kFailed;
  std::vector<int64_t> lengths(static_cast<size_t>(group.size()));
  group.all_gather(span_of(std::span(&length, 1)), span_of(std::span(lengths)), limit).wait();
  for (size_t rank = 0; rank < lengths.size(); ++rank)
    if (lengths[rank] == kFailed) throw_failed(operation, rank);
  std::string all(static_cast<size_t>(std::reduce(lengths.begin(), lengths.end())), '\0');
  group.all_gather(bytes_of(*own), bytes_of(all), lengths, limit).wait();
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t each : lengths) {
    texts.push_back(all.substr(begin, static_cast<size_t>(each)));
    begin += static_cast<size_t>(each);
  }
  return texts;
}

// The others wait for a rank whose value is no JSON: it tells them before it throws.
template <class Exchange>
auto with_text_of(const Json& json, Exchange exchange) {
  std::optional<std::string> text;
  std::exception_ptr failure;
  try {
    text = json.dump();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  try {
    return exchange(std::move(text));
  } catch (const detail::FailedElsewhere&) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
}

}  // namespace

std::string broadcast_bytes(Group group, std::string_view own, int root, Limit limit) {
  return broadcast_text(group, std::string(own), root, limit, "broadcast_bytes");
}

std::vector<std::string> all_gather_bytes(Group group, std::string_view own, Limit limit) {
  return all_gather_text(group, std::string(own), limit, "all_gather_bytes");
}

Json broadcast_object(Group group, const Json& own, int root, Limit limit) {
  const auto exchange = [&](std::optional<std::string> text) {
    return broadcast_text(group, std::move(text), root, limit, "broadcast_object");
  };
  // Only the root's counts, so only the root's can be wrong.
  if (group.rank() != root) return parse_json(exchange(""));
  return parse_json(with_text_of(own, exchange));
}

std::vector<Json> all_gather_object(Group group, const Json& own, Limit limit) {
  std::vector<Json> all;
  for (const std::string& text : with_text_of(own, [&](std::optional<std::string> text) {
         return all_gather_text(group, std::move(text), limit, "all_gather_object");
       }))
    all.push_back(parse_json(text));
  return all;
}

}  // namespace tutti
