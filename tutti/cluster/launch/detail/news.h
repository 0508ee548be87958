/// What the launcher tells all workers, in one order: who joined, who was lost, which descriptors
/// one of them gives out.
///
/// A worker that has not called join() reads nothing, and its socket holds a few hundred messages:
/// it is told from the first word on once it joins. Nobody is waited for, and nothing is dropped.
/// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/rendezvous/detail/messages.h"
#include "tutti/net/descriptor_channel.h"

namespace tutti::detail {

class News {
 public:
  explicit News(int num_workers) : told_(static_cast<size_t>(num_workers)) {}

  /// For everybody but `message.worker`, whose news it is; that it joined is for that worker too.
  void add(Notice message, std::vector<FileDescriptor> descriptors = {});

  /// Sends what `worker` has not been told yet; neighbouring `joined` go in one message. False when
  /// the channel is full: to be called again when it is writable. Throws what send() throws.
  bool tell(int worker, DescriptorChannel& channel);

  /// This worker needs no news any more.
  void leave(int worker);

 private:
  struct Item {
    Notice message;
    std::vector<FileDescriptor> descriptors;
  };

  void let_go();

  std::vector<Item> items_;
  std::vector<size_t> told_;  // how many items each worker has had
  size_t kept_from_ = 0;      // items before this one have let go of their descriptors
};

}  // namespace tutti::detail
