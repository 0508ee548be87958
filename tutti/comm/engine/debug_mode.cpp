#include "tutti/comm/engine/debug_mode.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/engine/detail/call.h"

namespace tutti {
namespace {

bool wanted_by_environment() noexcept {
  const char* text = std::getenv("TUTTI_DEBUG");
  return text != nullptr && std::strcmp(text, "") != 0 && std::strcmp(text, "0") != 0;
}

std::atomic<bool>& switch_of_debug_mode() noexcept {
  static std::atomic<bool> on{wanted_by_environment()};
  return on;
}

constexpr size_t kFileBytes = 192;

/// What travels: fixed in size, the same layout in every build of one version.
struct Signature {
  uint64_t number = 0;
  int64_t elements = 0;
  uint32_t line = 0;
  int32_t root = 0;
  uint8_t collective = 0;
  uint8_t reduce = 0;
  uint8_t dtype = 0;
  char file[kFileBytes + 5] = {};  ///< the end of a long name
};
static_assert(std::is_trivially_copyable_v<Signature>);
static_assert(sizeof(Signature) % 8 == 0);

Signature signature_of(const detail::Call& call, const std::source_location& site,
                       uint64_t number) {
  Signature mine{.number = number,
                 .elements = call.elements,
                 .line = site.line(),
                 .root = call.root,
                 .collective = static_cast<uint8_t>(call.collective),
                 .reduce = static_cast<uint8_t>(call.reduce),
                 .dtype = static_cast<uint8_t>(call.dtype)};
  const std::string_view file = site.file_name();
  const std::string_view end = file.substr(file.size() - std::min(file.size(), kFileBytes));
  end.copy(mine.file, end.size());
  return mine;
}

detail::Call call_of(const Signature& signature) {
  return {.collective = static_cast<Collective>(signature.collective),
          .reduce = static_cast<ReduceOp>(signature.reduce),
          .dtype = static_cast<DType>(signature.dtype),
          .root = signature.root,
          .elements = signature.elements};
}

bool same(const Signature& a, const Signature& b) {
  return detail::agree(call_of(a), call_of(b)) && a.line == b.line &&
         std::strncmp(a.file, b.file, sizeof a.file) == 0;
}

std::string words(int rank, const Signature& signature) {
  return fmt::format("rank {} called {} at {}", rank, detail::words_of(call_of(signature)),
                     detail::place_words(signature.file, signature.line));
}

}  // namespace

void set_debug_mode(bool on) noexcept { switch_of_debug_mode().store(on); }
bool debug_mode() noexcept { return switch_of_debug_mode().load(std::memory_order_relaxed); }

void detail::compare_calls(Engine& engine, const Operation& operation,
                           const std::source_location& site, uint64_t number) {
  const Signature mine = signature_of(detail::call_of(operation), site, number);
  std::vector<Signature> all(static_cast<size_t>(engine.size()), mine);
  const auto bytes = static_cast<int64_t>(sizeof(Signature));
  Signature sent = mine;
  engine.run({.collective = Collective::all_gather,
              .input = {&sent, bytes, DType::uint8},
              .output = {all.data(), bytes * engine.size(), DType::uint8},
              .limit = operation.limit});
  const auto odd = std::find_if(all.begin(), all.end(),
                                [&](const Signature& other) { return !same(all[0], other); });
  if (odd == all.end()) return;
  const int rank = static_cast<int>(odd - all.begin());
  const bool only_place = detail::agree(call_of(all[0]), call_of(*odd));
  const std::string text = fmt::format(
      "ranks disagree on call #{}: {}, {}\n  every rank must make the same calls in the same "
      "order{} (debug mode)",
      number, words(0, all[0]), words(rank, *odd),
      only_place ? ", from the same place of the program" : "");
  engine.abort(FailureKind::mismatch, text);
  throw Mismatch(fmt::format("{} #{}, rank {} of {}: {}", name_of(operation.collective), number,
                             engine.rank(), engine.size(), text));
}

}  // namespace tutti
