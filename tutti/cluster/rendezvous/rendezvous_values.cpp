#include "tutti/cluster/rendezvous/rendezvous_values.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// Messages of the rendezvous are text, values any bytes.
constexpr std::string_view kDigits = "0123456789abcdef";

std::string hex_of(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

std::string bytes_in(std::string_view text, std::string_view key) {
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2) {
    const size_t high = kDigits.find(text[i]);
    const size_t low = i + 1 < text.size() ? kDigits.find(text[i + 1]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos)
      throw Error(fmt::format("rendezvous, value \"{}\": it is damaged", key));
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace

std::shared_ptr<Rendezvous> RendezvousValues::rendezvous(std::string_view key) const {
  if (auto here = rendezvous_.lock()) return here;
  throw PeerLost(fmt::format("rendezvous, value \"{}\": this process has left the job", full(key)));
}

std::string RendezvousValues::full(std::string_view key) const {
  return fmt::format("{}/{}", name_, key);
}

void RendezvousValues::put(std::string_view key, std::string_view value) {
  if (value.size() > detail::kMaxValueBytes)
    throw UsageError(fmt::format("rendezvous, value \"{}\": {} bytes, at most {} are possible",
                                 full(key), value.size(), detail::kMaxValueBytes));
  rendezvous(key)->put(full(key), hex_of(value), Deadline(limit_));
}

std::string RendezvousValues::get(std::string_view key, const Deadline& deadline) {
  return bytes_in(rendezvous(key)->get(full(key), deadline), key);
}

std::optional<std::string> RendezvousValues::try_get(std::string_view key) {
  const auto text = rendezvous(key)->look(full(key), Deadline(limit_));
  if (!text) return std::nullopt;
  return bytes_in(*text, key);
}

void RendezvousValues::require_all() {
  const auto here = rendezvous_.lock();
  if (const std::string loss = here ? here->first_loss() : ""; !loss.empty())
    throw PeerLost(fmt::format("{}\n  look first at its last lines", loss));
}

}  // namespace tutti
