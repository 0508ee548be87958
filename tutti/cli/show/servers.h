/// `tutti show parameter-server`, `sync` and `async`: who pushes and pulls what when, and who
/// waits. Thread rule: the main thread alone; servers_shown() is a pure function.
#pragma once

#include <string>

#include "tutti/cli/show/servers_job.h"
#include "tutti/cli/show/shown.h"

namespace tutti::cli {

struct Command;

/// Which of the commands asks: what is said in title and notes.
enum class ServersView { parameter_server, sync, async };

/// The drawing and the figures of a job. Throws Error for a trace that lacks something.
Shown servers_shown(const ServersTrace& trace, ServersView view);

void add_show_parameter_server(Command& show);
void add_show_sync(Command& show);
void add_show_async(Command& show);

}  // namespace tutti::cli
