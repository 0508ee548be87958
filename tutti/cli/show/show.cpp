// tutti show: drawings of what replicas, servers and stages do, made by jobs that are run for them.
#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/show/hierarchy.h"
#include "tutti/cli/show/pipeline.h"
#include "tutti/cli/show/ring.h"
#include "tutti/cli/show/servers.h"
#include "tutti/cli/show/speed.h"

namespace tutti::cli {

void add_show(Command& program) {
  Command& show = program.command(
      "show", "Run a small job and draw who sent what when, and where somebody waited");
  show.footer =
      "Each runs a job on this machine and draws its trace: an SVG, and an animation in the "
      "terminal.\n\nExample:\n  tutti show ring -n 5";
  add_show_ring(show);
  add_show_parameter_server(show);
  add_show_sync(show);
  add_show_async(show);
  add_show_hierarchy(show);
  add_show_pipeline(show);
  add_show_t1_t2(show);
  add_show_scaling(show);
}

}  // namespace tutti::cli
