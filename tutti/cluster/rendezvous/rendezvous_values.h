/// RendezvousValues: the values that processes of a job leave for each other at its rendezvous.
/// Thread rule: any thread, several at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/cluster/rendezvous/rendezvous.h"
#include "tutti/net/key_values.h"

namespace tutti {

/// They are there as long as the job; with the rendezvous' end everything here throws PeerLost. A
/// value has at most 4 MiB (kMaxValueBytes).
class RendezvousValues final : public KeyValues {
 public:
  /// name   keeps the keys of different users apart
  /// limit  of the answers to put() and try_get(), which wait for the rendezvous alone
  RendezvousValues(std::weak_ptr<Rendezvous> rendezvous, std::string name,
                   Millis limit = Millis{30'000})
      : rendezvous_(std::move(rendezvous)), name_(std::move(name)), limit_(limit) {}

  void put(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  void require_all() override;

 private:
  std::shared_ptr<Rendezvous> rendezvous(std::string_view key) const;
  std::string full(std::string_view key) const;

  const std::weak_ptr<Rendezvous> rendezvous_;
  const std::string name_;
  const Millis limit_;
};

}  // namespace tutti
