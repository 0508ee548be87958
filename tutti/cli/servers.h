/// ServerFleet: the parameter servers that a launching command starts beside its workers, and the
/// view service for all of them.
/// Thread rule: the main thread alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/net/token.h"
#include "tutti/ps/view_service.h"

namespace tutti::cli {

struct FleetOptions {
  int num_servers = 1;
  int num_workers = 1;
  bool backups = true;
  int threads = 0;                        ///< of each server; 0: usable cores / servers
  double memory_limit_gb = 0;             ///< of each server; 0: none
  bool share_memory = true;               ///< with the workers
  Millis silence{kDefaultTimeLimit / 2};  ///< a server or worker that says nothing for so long is
                                          ///< lost; workers wait for longer than that
  bool announce = true;                   ///< print `view service at HOST:PORT`, `server I pid P`
};

class ServerFleet {
 public:
  /// Starts `tutti ps` so many times on this host. Throws Error.
  explicit ServerFleet(const FleetOptions& options);
  /// Gives servers 2 s to end in order, then kills them.
  ~ServerFleet();
  ServerFleet(const ServerFleet&) = delete;

  /// NAME=value of what workers need to find the servers.
  std::vector<std::string> worker_environment() const;

 private:
  struct Process;
  void start(int number, const FleetOptions& options);

  const Token token_;
  std::unique_ptr<ps::ViewService> service_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace tutti::cli
