// tutti ps: one parameter server.
#include <cmath>
#include <memory>
#include <string>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/net/tls.h"
#include "tutti/ps/server/server.h"

namespace tutti::cli {
namespace {

struct PsFlags {
  std::string view_service;
  int number = -1;
  int threads = 0;
  int poll_us = 0;
  double memory_limit_gb = 0;
  double limit_s = 30;
  bool no_shared_memory = false;
  std::string record_order, replay_order;
};

constexpr double kMostGigabytes = 1e6;
constexpr double kBytesPerGigabyte = 1e9;

int serve(const PsFlags& flags) {
  const Token token = require_token("tutti ps");
  const Millis limit(static_cast<int64_t>(std::ceil(flags.limit_s * 1000)));
  ps::run_server({.number = flags.number,
                  .view_service = parse_host_port(flags.view_service, "--view-service"),
                  .interface = interface_from_environment(),
                  .threads = flags.threads,
                  .memory_limit = static_cast<int64_t>(flags.memory_limit_gb * kBytesPerGigabyte),
                  .limit = limit,
                  .poll = std::chrono::microseconds(flags.poll_us),
                  .share_memory = !flags.no_shared_memory,
                  .record_order = flags.record_order,
                  .replay_order = flags.replay_order},
                 {token, job_of_token(token), tls_from_environment()});
  return 0;
}

}  // namespace

void add_ps(Command& program) {
  auto flags = std::make_shared<PsFlags>();
  Command& command = program.command(
      "ps", "Be a parameter server of a job; `tutti run --servers` starts some by itself");
  command
      .add("--view-service", "HOST:PORT", &flags->view_service, "Where the job's launcher listens")
      .required = true;
  command
      .add("--number", "I", &flags->number, whole_number(0, 1'000'000),
           "Which of the job's servers (default: any; one that comes later takes over as a "
           "backup)")
      .preset = "";
  command.add("--threads", "T", &flags->threads, whole_number(1, 1024),
              "That update (default: usable cores, 4 at most)");
  command
      .add("--poll", "MICROSECONDS", &flags->poll_us, whole_number(0, 1'000'000),
           "Looks for so long before it sleeps: quicker answers from a server with a core "
           "of its own")
      .preset = "0";
  command.add("--memory-limit", "GB", &flags->memory_limit_gb, positive_number(kMostGigabytes),
              "Ends with an error before more is held (default: no limit)");
  command.add("--time-limit", "SECONDS", &flags->limit_s, positive_number(kMostSeconds),
              "To find the view service");
  command.flag("--no-shared-memory", &flags->no_shared_memory,
               "Exchange bytes with workers of this host, too");
  command.add("--record-order", "DIR", &flags->record_order, some_name(),
              "Writes its part of the order of updates there; the job's launcher says where");
  command.add("--replay-order", "FILE", &flags->replay_order, some_name(),
              "Follows that order of updates; the same on all servers of a job");
  command.footer =
      "Example, with the TUTTI_TOKEN of the job, to replace a lost server:\n"
      "  tutti ps --view-service node0:41023";
  command.action = [flags] { return serve(*flags); };
}

}  // namespace tutti::cli
