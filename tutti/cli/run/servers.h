/// ServerFleet: the parameter servers that a launching command starts beside its workers, on one
/// node or several, and the view service for all of them, which is on node 0.
/// Thread rule: the main thread alone.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/folder_lock.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/net/token.h"
#include "tutti/ps/server/view_service.h"
#include "tutti/ps/spec/update_order.h"

namespace tutti::cli {

/// What a job does with the order of updates (ps::UpdateOrder).
struct OrderOptions {
  std::filesystem::path record{};  ///< file to write at the end; "": none
  std::filesystem::path replay{};  ///< file to follow; "": none
};

struct FleetOptions {
  std::filesystem::path program{};  ///< whose `ps` is a server; empty: this one
  int num_servers = 1;              ///< started on each node
  int elsewhere = 0;                ///< more of them, that somebody starts by `tutti ps`
  int num_workers = 1;              ///< on each node
  std::string view_service;  ///< "ADDRESS[:PORT]" where it listens; "": where the rendezvous is, or
                             ///< on this host alone
  bool backups = true;
  int threads = 0;                        ///< of each server; 0: usable cores / servers here
  double memory_limit_gb = 0;             ///< of each server; 0: none
  bool share_memory = true;               ///< with the workers
  Millis silence{kDefaultTimeLimit / 2};  ///< a server or worker that says nothing for so long is
                                          ///< lost; workers wait for longer than that
  bool announce = true;                   ///< print `view service at HOST:PORT`, `server I pid P`
  ps::SnapshotOptions snapshots{};        ///< goes_on_from: a snapshot, or a folder that has some
  OrderOptions order{};
};

class ServerFleet {
 public:
  /// Servers for the job that `launch` describes, which is told how to prepare for them: launch()
  /// then starts `tutti ps` on this node so many times. On node 0 the view service listens from now
  /// on, and servers from elsewhere are waited for. Throws UsageError, also for folders of
  /// snapshots that cannot be used; Error, Timeout.
  ServerFleet(const FleetOptions& options, LaunchOptions& launch);
  /// As end() of a job that failed.
  ~ServerFleet();
  ServerFleet(const ServerFleet&) = delete;

  /// Gives servers 2 s to end in order, 30 s where they write an order of updates, then kills them;
  /// puts the order together. Throws DataError and WriteError where that is not whole or cannot be
  /// written; of a job that failed, which has a cause of its own, it logs them. Idempotent.
  void end(bool job_failed);

 private:
  struct Process;
  void prepare_order();
  void take_parts();
  ps::UpdateOrder wait_for_order(bool job_failed) const;
  void write_order(bool job_failed);
  std::string order_flags() const;
  void serve_view();
  void wait_for_elsewhere() const;
  std::vector<std::string> start(const std::string& view_service);
  void start_one(int number, const std::string& view_service);
  /// Of the servers that launchers start; those from elsewhere have the numbers after them.
  int num_started() const { return nodes_.num_nodes * options_.num_servers; }
  int num_all() const { return num_started() + options_.elsewhere; }
  bool on_one_host() const { return nodes_.num_nodes == 1 && options_.elsewhere == 0; }
  /// Of servers and workers here, as long as each has a core of its own.
  std::chrono::microseconds poll() const;

  const FleetOptions options_;
  const NodePlace nodes_;
  const Token token_;
  std::filesystem::path restore_;         // snapshot that the job goes on from; "": none
  std::filesystem::path parts_;           // folder for the servers' parts of the order
  std::optional<FolderLock> parts_lock_;  // on node 0
  std::string order_words_;               // ViewServiceOptions::order
  bool ended_ = false;
  std::unique_ptr<ps::ViewService> service_;  // on node 0
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace tutti::cli
