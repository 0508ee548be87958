// The flags of tutti show parameter-server, sync and async.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/show/servers.h"

namespace tutti::cli {
namespace {

constexpr int64_t kMostSteps = 12;

struct ServersFlags {
  ShowFlags show;
  int64_t workers = 3, servers = 1, steps = 3;
  std::string staleness = "0";
};

void add_sizes(Command& command, ServersFlags& flags) {
  command
      .add("--workers", "N", &flags.workers, whole_number(1, int64_t{1} << 31),
           "Workers, threads here, 1 to 12 with all servers")
      .short_name = "-n";
  command.add("--steps", "K", &flags.steps, whole_number(1, int64_t{1} << 31),
              "Of each worker, 1 to 12");
}

int show_servers(const ServersFlags& flags, ServersView view, int64_t slow_rows) {
  const std::string figures = "-n 3, or `tutti train --strategy parameter_server` for figures";
  require_on_screen("-n", flags.workers, 1, drawings::kMostLanes - 1, figures);
  require_on_screen("--servers", flags.servers, 1, drawings::kMostLanes - flags.workers,
                    fmt::format("--servers 1 beside {} workers", flags.workers));
  require_on_screen("--steps", flags.steps, 1, kMostSteps, "--steps 3");
  const ServersJob job{.workers = static_cast<int>(flags.workers),
                       .servers = static_cast<int>(flags.servers),
                       .staleness = ps::Staleness::parse(flags.staleness, "--staleness"),
                       .steps = flags.steps,
                       .slow_rows = slow_rows};
  require_outputs(flags.show);
  return present(servers_shown(run_servers(job), view), flags.show);
}

}  // namespace

void add_show_parameter_server(Command& show) {
  auto flags = std::make_shared<ServersFlags>();
  flags->show.svg = "parameter-server.svg";
  flags->workers = 4;
  flags->servers = 2;
  Command& command =
      show.command("parameter-server", "Workers push gradients to servers and pull parameters");
  add_sizes(command, *flags);
  command.add("--servers", "S", &flags->servers, whole_number(1, int64_t{1} << 31),
              "Servers, threads here");
  command.add("--staleness", "S", &flags->staleness, "0: in step; s; inf");
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show parameter-server -n 4 --servers 2";
  command.action = [flags] { return show_servers(*flags, ServersView::parameter_server, 1); };
}

void add_show_sync(Command& show) {
  auto flags = std::make_shared<ServersFlags>();
  flags->show.svg = "sync.svg";
  Command& command = show.command("sync", "Workers in step: all wait for the slowest");
  add_sizes(command, *flags);
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show sync";
  command.action = [flags] { return show_servers(*flags, ServersView::sync, 3); };
}

void add_show_async(Command& show) {
  auto flags = std::make_shared<ServersFlags>();
  flags->show.svg = "async.svg";
  flags->steps = 6;
  flags->staleness = "2";
  Command& command = show.command("async", "Workers each at its own pace, up to a staleness");
  add_sizes(command, *flags);
  command.add("--staleness", "S", &flags->staleness,
              "Steps that a worker may be ahead of the slowest: 1 or more, or inf");
  add_show_flags(command, flags->show);
  command.footer = "Example:\n  tutti show async --staleness 2";
  command.action = [flags] {
    if (ps::Staleness::parse(flags->staleness, "--staleness").synchronous())
      throw UsageError(
          "--staleness: got 0, expected 1 or more, or inf; try `tutti show sync`, which is that");
    return show_servers(*flags, ServersView::async, 3);
  };
}

}  // namespace tutti::cli
