/// Server: the process of a parameter server. `tutti ps` is one; `tutti run --servers` starts them.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"

namespace tutti::ps {

struct ServerOptions {
  int number = -1;        ///< among the servers; -1: any that is free, also to replace a lost one
  HostPort view_service;  ///< where the job's view service listens
  std::string interface;  ///< to be reached at: interface, subnet or address; "": by route
  int threads = 0;        ///< that update; 0: usable cores, 4 at most
  int64_t memory_limit = 0;         ///< bytes of parameters, states and what is on its way; 0: none
  Millis limit{kDefaultTimeLimit};  ///< to find the view service
  Millis silence{kDefaultTimeLimit};  ///< without a word of the view service: it is lost
  std::chrono::microseconds poll{0};  ///< before it sleeps: for a server with a core of its own
  bool share_memory = true;           ///< with others of this host; else payloads go as bytes
  /// Folder for its parts of the order of updates (OrderPart), which all servers see; "": none.
  std::filesystem::path record_order = {};
  std::filesystem::path replay_order = {};  ///< file with the order to follow; "": none
};

/// Serves until the job is over. Throws Error with the reason when it ends otherwise: the job
/// failed, this server was replaced, memory ran out; Timeout or Mismatch when the view service is
/// not there or of another job. Thread rule: the calling thread does the work.
void run_server(const ServerOptions& options, const Credentials& credentials);

}  // namespace tutti::ps
