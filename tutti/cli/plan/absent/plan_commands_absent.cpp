// Compiled instead of tutti/extras/plan_commands where TUTTI_WITH_EXTRAS is off.
#include <fmt/format.h>

#include <string>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {
namespace {

void add_absent(Command& plan, const std::string& name) {
  Command& command = plan.command(name, "Not in this build");
  command.starts_program = true;
  command.action = [name]() -> int {
    throw UsageError(fmt::format("plan {} is not in this build (TUTTI_WITH_EXTRAS=OFF)", name));
  };
}

}  // namespace

void add_plan_table(Command& plan) { add_absent(plan, "table"); }

void add_plan_replay(Command& plan) { add_absent(plan, "replay"); }

void add_plan_hlo(Command& plan) { add_absent(plan, "hlo"); }

}  // namespace tutti::cli
