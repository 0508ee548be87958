#include "tutti/cli/train/needs.h"

#include "tutti/cli/train/files.h"
#include "tutti/mesh/mesh.h"

namespace tutti::cli {
namespace {

mesh::Mesh mesh_of(const TrainFlags& flags) {
  return mesh::Mesh::parse(flags.job.mesh, static_cast<int>(flags.job.replicas.value_or(0)));
}

bool has_stages(const TrainFlags& flags) {
  return !flags.job.mesh.empty() && mesh_of(flags).size(mesh::Axis::stage) > 1;
}

// As the model is then dealt out (LaidOut); `full` is of stages alone.
bool recomputes(const TrainFlags& flags) {
  const bool dealt_out = flags.job.tensor_blocks.value_or(1) > 1 ||
                         (!flags.job.mesh.empty() && mesh_of(flags).model_ranks() > 1);
  return dealt_out || flags.recompute != "full";
}

bool loads_ahead(const TrainFlags& flags) { return flags.loader.workers != "0"; }
bool uses_servers(const JobFlags& flags) { return flags.uses_servers(); }
bool writes_snapshots(const JobFlags& flags) {
  return flags.uses_servers() && !flags.served.snapshots.folder.empty();
}

constexpr std::string_view kOfStages =
    "it is of stages, and --mesh has none (--mesh stage=2 cuts the model into two)";
constexpr std::string_view kOfCheckpoints =
    "it is of checkpoints, and none are kept (--out DIR keeps them; parameter servers have "
    "snapshots instead)";
constexpr std::string_view kOfServers =
    "it is of parameter servers, and this strategy has none (--strategy parameter_server)";
constexpr std::string_view kOfSnapshots =
    "it is of snapshots, and none are written (--strategy parameter_server --snapshots DIR)";
constexpr std::string_view kOfLoader =
    "it is of batches that are made ahead, and --workers 0 makes none";

}  // namespace

const std::vector<NeededBy<JobFlags>>& needs_of_jobs() {
  static const std::vector<NeededBy<JobFlags>> rows = {
      {"--servers", uses_servers, kOfServers},
      {"--restarts", uses_servers, kOfServers},
      {"--no-backups", uses_servers, kOfServers},
      {"--snapshots", uses_servers, kOfServers},
      {"--restore", uses_servers, kOfServers},
      {"--snapshot-every", writes_snapshots, kOfSnapshots},
      {"--snapshots-kept", writes_snapshots, kOfSnapshots},
  };
  return rows;
}

const std::vector<NeededBy<TrainFlags>>& needs_of_training() {
  static const std::vector<NeededBy<TrainFlags>> rows = {
      {"--pipeline", has_stages, kOfStages},
      {"--cut", has_stages, kOfStages},
      {"--recompute", recomputes,
       "it is all of a stage, and --mesh has none (blocks, every:K and layers' names need none)"},
      {"--keep-checkpoints", keeps_checkpoints, kOfCheckpoints},
      {"--disk-limit", keeps_checkpoints, kOfCheckpoints},
      {"--best-by", [](const TrainFlags& flags) { return flags.keep_best > 0; },
       "it is of the best checkpoints, and none are kept for that (--keep-best K)"},
      {"--grace",
       [](const TrainFlags& flags) { return are_processes(flags.job) || keeps_checkpoints(flags); },
       "nobody has to end here but this process, which has nothing to save (--out DIR)"},
      {"--learning-rate",
       [](const TrainFlags& flags) { return !flags.schedule.starts_with("piecewise_constant"); },
       "the values of --schedule piecewise_constant are the rates"},
      {"--loader-memory", loads_ahead, kOfLoader},
      {"--ahead", loads_ahead, kOfLoader},
  };
  return rows;
}

}  // namespace tutti::cli
