#include "tutti/strategy/choice/launched.h"

#include <fmt/format.h>

#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/spec/detail/environment.h"

namespace tutti {

void check_launched(const StrategyOptions& options) {
  if (options.alone) return;
  const bool of_several =
      options.kind == "multi_worker" || options.uses_servers() || options.is_compiled();
  const auto job = of_several ? std::nullopt : job_of_this_process();
  if (job && job->kind == TaskKind::worker && job->num_workers > 1)
    throw UsageError(fmt::format(
        "--strategy {} is for one process, but a launcher started {} workers ({}), each of which "
        "would do all of the work; use --strategy multi_worker, or start it without `tutti run`; a "
        "program whose workers are to train apart, as in a sweep, sets `alone`",
        options.kind, job->num_workers, job->source));
  const char* const servers = std::getenv(detail::kNumServersVariable);
  if (!options.uses_servers() && servers != nullptr)
    throw UsageError(
        fmt::format("--strategy {} has no part for the {} parameter server{} that a launcher "
                    "started (--servers "
                    "of `tutti run`); use --strategy parameter_server, or start it without them",
                    options.kind, servers, std::string_view(servers) == "1" ? "" : "s"));
}

}  // namespace tutti
