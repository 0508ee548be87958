#include "tutti/ps/wire/host_memory.h"

#include <utility>

namespace tutti::ps {
namespace {

constexpr const char* kKey = "parameter server memory";

}  // namespace

HostMemory::HostMemory(const Token& token, std::shared_ptr<SharedHeap> heap)
    : token_(token), heap_(std::move(heap)), giver_(token, kKey, heap_->descriptor()) {}

std::shared_ptr<PeerHeap> HostMemory::open(const std::string& name, const std::string& who,
                                           const Deadline& deadline) const {
  if (name.empty()) return nullptr;
  const auto taken = take_descriptor({.name = name, .key = kKey, .who = who}, token_, deadline);
  return taken ? std::make_shared<PeerHeap>(taken->get(), who) : nullptr;
}

}  // namespace tutti::ps
