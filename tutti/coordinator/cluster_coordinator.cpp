#include "tutti/coordinator/cluster_coordinator.h"

#include <errno.h>

#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/cluster/join/exit_code.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/coordinator/build.h"
#include "tutti/coordinator/step_server.h"
#include "tutti/net/tls.h"

namespace tutti {
namespace {

// Process 0 of the job is the coordinator.
struct OwnProcess {
  int process = 0;
  int num_workers = 1;
  HostPort view_service;
};

OwnProcess own_process() {
  const char* const service = std::getenv(detail::kViewServiceVariable);
  const auto job = job_of_this_process();
  if (std::getenv(detail::kCoordinatorVariable) == nullptr || service == nullptr || !job)
    throw UsageError(
        "coordinate: this job has no coordinator; start it with: tutti run --servers 1 -n 2 "
        "--coordinator PROGRAM ARGS...");
  return {.process = job->worker,
          .num_workers = job->num_workers - 1,
          .view_service = parse_host_port(service, detail::kViewServiceVariable)};
}

void take_part(const std::function<void(ClusterCoordinator&)>& program,
               const CoordinatorOptions& options) {
  coordinator::close_registration();
  const OwnProcess own = own_process();
  const Token token = require_token("coordinate");
  const Credentials credentials{token, job_of_token(token), tls_from_environment()};
  const std::string build = coordinator::build_of_this_process();
  if (own.process > 0) set_log_worker(own.process, own.num_workers);
  if (own.process > 0)
    return coordinator::serve_steps({.number = own.process,
                                     .num_workers = own.num_workers,
                                     .view_service = own.view_service,
                                     .build = build,
                                     .process = process_words(),
                                     .limit = options.limit},
                                    credentials);
  ClusterCoordinator cluster({.num_workers = own.num_workers,
                              .view_service = own.view_service,
                              .interface = interface_from_environment(),
                              .build = build,
                              .limit = options.limit,
                              .without_workers = options.without_workers,
                              .step_limit = options.step_limit,
                              .most_waiting = options.queue},
                             credentials);
  program(cluster);
}

}  // namespace

ClusterCoordinator::ClusterCoordinator(const coordinator::DispatcherOptions& options,
                                       const Credentials& credentials)
    : num_workers_(options.num_workers), dispatcher_(options, credentials) {}

int coordinate(const std::function<void(ClusterCoordinator&)>& program,
               const CoordinatorOptions& options) {
  try {
    take_part(program, options);
    return 0;
  } catch (const std::exception& error) {
    return report_ending(program_invocation_short_name, error);
  }
}

}  // namespace tutti
