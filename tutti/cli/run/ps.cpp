// tutti ps: one parameter server.
#include <cmath>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
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
                  .share_memory = !flags.no_shared_memory},
                 {token, job_of_token(token), tls_from_environment()});
  return 0;
}

}  // namespace

void add_ps(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PsFlags>();
  CLI::App* command = app.add_subcommand(
      "ps", "Be a parameter server of a job; `tutti run --servers` starts some by itself");
  command->add_option("--view-service", flags->view_service, "Where the job's launcher listens")
      ->required()
      ->type_name("HOST:PORT");
  command
      ->add_option("--number", flags->number,
                   "Which of the job's servers (default: any; one that comes later takes over as a "
                   "backup)")
      ->check(whole_number(0, 1'000'000))
      ->type_name("I");
  command->add_option("--threads", flags->threads, "That update (default: usable cores, 4 at most)")
      ->check(whole_number(1, 1024))
      ->type_name("T");
  command
      ->add_option("--poll", flags->poll_us,
                   "Looks for so long before it sleeps: quicker answers from a server with a core "
                   "of its own")
      ->check(whole_number(0, 1'000'000))
      ->type_name("MICROSECONDS")
      ->capture_default_str();
  command
      ->add_option("--memory-limit", flags->memory_limit_gb,
                   "Ends with an error before more is held (default: no limit)")
      ->check(positive_number(kMostGigabytes))
      ->type_name("GB");
  command->add_option("--time-limit", flags->limit_s, "To find the view service")
      ->check(positive_number(kMostSeconds))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_flag("--no-shared-memory", flags->no_shared_memory,
                    "Exchange bytes with workers of this host, too");
  command->footer(
      "Example, with the TUTTI_TOKEN of the job, to replace a lost server:\n"
      "  tutti ps --view-service node0:41023");
  command->callback([flags, &exit_code] { exit_code = serve(*flags); });
}

}  // namespace tutti::cli
