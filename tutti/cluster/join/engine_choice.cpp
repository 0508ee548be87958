#include "tutti/cluster/join/engine_choice.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti {
namespace {

std::string hosts_words(const std::vector<int>& per_host) {
  const int ranks = std::accumulate(per_host.begin(), per_host.end(), 0);
  if (ranks == 1) return "there is one rank";
  if (per_host.size() == 1) return fmt::format("all {} ranks are on one host", ranks);
  const bool single = std::all_of(per_host.begin(), per_host.end(), [](int n) { return n == 1; });
  if (single) return fmt::format("each of the {} ranks is on a host of its own", ranks);
  return fmt::format("{} ranks are on {} hosts ({})", ranks, per_host.size(),
                     fmt::join(per_host, "+"));
}

EngineChoice best(const EngineQuestion& question) {
  const auto& per_host = question.replicas_per_host;
  const std::string where = hosts_words(per_host);
  if (per_host == std::vector<int>{1}) return {"solo", "there is one rank"};
  if (question.on_device) return {"nccl", "the buffers are in memory of CUDA devices"};
  if (per_host.size() == 1) return {"shm", where};
  if (question.mpi_built && question.mpi_launcher)
    return {"mpi", where + ", and mpirun, which started them, knows the network between them"};
  const bool single = std::all_of(per_host.begin(), per_host.end(), [](int n) { return n == 1; });
  if (single) return {"tcp", where};
  return {"hier", where};
}

}  // namespace

EngineChoice choose_engine(const EngineQuestion& question) {
  const auto& per_host = question.replicas_per_host;
  const std::string_view asked = question.asked;
  const std::string reason = "it was asked for";
  const auto refuse = [&](std::string_view why, std::string_view instead) {
    return UsageError(fmt::format("engine \"{}\": {}; use {}", asked, why, instead));
  };
  if (question.on_device && asked != "nccl" && asked != "auto" && asked != "solo")
    throw refuse("it cannot reach memory of CUDA devices", "nccl or auto");
  if (asked == "auto") {
    EngineChoice choice = best(question);
    if (choice.engine == "nccl" && !question.nccl_built)
      throw refuse("the buffers are in memory of CUDA devices, and nccl is not in this build",
                   "buffers in host memory");
    return choice;
  }
  if (asked == "tcp") return {"tcp", reason};
  if (asked == "shm") {
    if (per_host.size() > 1) throw refuse(hosts_words(per_host), "hier, tcp or auto");
    return {"shm", reason};
  }
  if (asked == "hier") {
    if (per_host.size() == 1) throw refuse(hosts_words(per_host), "shm or auto");
    return {"hier", reason};
  }
  if (asked == "solo") {
    if (per_host != std::vector<int>{1}) throw refuse(hosts_words(per_host), "auto");
    return {"solo", reason};
  }
  if (asked == "mpi") {
    if (!question.mpi_built) throw refuse("it is not in this build (no MPI was found)", "auto");
    if (!question.mpi_launcher) throw refuse("mpirun did not start these ranks", "tcp or auto");
    return {"mpi", reason};
  }
  if (asked == "nccl") {
    if (!question.on_device)
      throw refuse("the buffers are in host memory", "auto, or name the CUDA device");
    if (!question.nccl_built)
      throw refuse("it is not in this build (no CUDA and NCCL were found)", "auto");
    return {"nccl", reason};
  }
  const std::vector<std::string> known = {"auto", "hier", "mpi", "nccl", "shm", "tcp"};
  throw UsageError(unknown_message("engine", asked, known));
}

}  // namespace tutti
