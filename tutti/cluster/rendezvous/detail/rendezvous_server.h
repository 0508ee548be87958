/// The rendezvous of a job: a thread that serves all workers and launchers over their links.
///
/// It runs where the rendezvous address is: in the launcher of node 0, or in worker 0 where others
/// started the workers. What it decides stands in rendezvous_state.h.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/cluster/rendezvous/detail/rendezvous_state.h"
#include "tutti/net/text_stream.h"

namespace tutti::detail {

class RendezvousServer {
 public:
  explicit RendezvousServer(const RendezvousState::Options& options);
  RendezvousServer(const RendezvousServer&) = delete;
  /// Tells all clients that it ends in order, and ends.
  ~RendezvousServer();

  /// Serves one more client. The link is authenticated: it belongs to this job.
  void add(std::unique_ptr<Link> link);

 private:
  void serve();
  void serve_until_end();
  void say_bye();
  void fail(const std::string& why) noexcept;
  void take_new_clients();
  void read(int client);
  void flush(int client);
  void tell(const RendezvousState::Outbox& outbox);
  void drop(int client, const std::string& how);

  RendezvousState state_;
  std::map<int, TextStream> clients_;  // used by the thread alone
  int next_client_ = 0;
  FileDescriptor wake_;  // an eventfd

  std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Link>> new_links_;
  bool ends_ = false;
  bool failed_ = false;  // nobody is served any more

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tutti::detail
