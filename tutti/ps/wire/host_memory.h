/// HostMemory: how two connected processes of a job find out that they share a host, and map each
/// other's heap.
///
/// Each tells the other its name() in its first frames and open()s what it is told. Then it shares
/// the heap that came with its stream, and tells the other side that it may lend
/// (FrameStream::share, FrameStream::lend_own).
/// Thread rule: const functions may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/net/descriptor_giver.h"
#include "tutti/net/token.h"
#include "tutti/ps/wire/shared_heap.h"

namespace tutti::ps {

class HostMemory {
 public:
  /// Gives `heap` to processes that hold `token`, from a thread of its own, while it lives.
  HostMemory(const Token& token, std::shared_ptr<SharedHeap> heap);

  /// For open() of the other side: printable letters without a blank.
  const std::string& name() const noexcept { return giver_.name(); }
  const std::shared_ptr<SharedHeap>& heap() const noexcept { return heap_; }

  /// The heap of the process with that name; null when it is not of this host, or "" was told:
  /// payloads then go as bytes. `who` names it in errors. Throws as take_descriptor(), and Error
  /// when what it passed is no heap.
  std::shared_ptr<PeerHeap> open(const std::string& name, const std::string& who,
                                 const Deadline& deadline) const;

 private:
  const Token token_;
  const std::shared_ptr<SharedHeap> heap_;
  const DescriptorGiver giver_;
};

}  // namespace tutti::ps
