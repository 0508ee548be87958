#include "tutti/comm/nccl/nccl.h"

#include <cstring>

#include "tutti/base/log.h"
#include "tutti/comm/nccl/nccl_engine.h"

namespace tutti {
namespace {

// Rank 0 makes the id; everybody gets it through the place.
ncclUniqueId agree_on_id(MeetingPlace& place, const Deadline& deadline) {
  ncclUniqueId id{};
  std::string mine;
  if (place.rank() == 0) {
    const ncclResult_t code = ncclGetUniqueId(&id);
    // The others must not wait for an id that never comes.
    mine = code == ncclSuccess ? std::string(id.internal, sizeof id.internal)
                               : std::string("!") + ncclGetErrorString(code);
  }
  const std::string chosen = place.exchange("nccl id", mine, deadline).at(0);
  if (chosen.size() != sizeof id.internal)
    throw Error(fmt::format("make_nccl, rank {} of {}: rank 0 could not make an id: {}",
                            place.rank(), place.size(), chosen));
  std::memcpy(id.internal, chosen.data(), sizeof id.internal);
  return id;
}

}  // namespace

bool nccl_available() noexcept { return true; }

std::string nccl_version() {
  int version = 0;
  (void)ncclGetVersion(&version);
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

NcclFacts nccl_facts(int device) {
  constexpr int kMostChars = 32;
  NcclFacts facts{.version = nccl_version()};
  char address[kMostChars] = {};
  detail::nccl::check_cuda(cudaRuntimeGetVersion(&facts.cuda), "cudaRuntimeGetVersion");
  detail::nccl::check_cuda(cudaDeviceGetPCIBusId(address, kMostChars, device),
                           "cudaDeviceGetPCIBusId");
  facts.gpu = address;
  return facts;
}

std::shared_ptr<Engine> make_nccl(MeetingPlace& place, const NcclOptions& options) {
  const Deadline deadline(options.limit);
  const std::string where = fmt::format("make_nccl, rank {} of {}", place.rank(), place.size());
  const detail::nccl::OnDevice here(options.device);
  ncclUniqueId id = agree_on_id(place, deadline);
  ncclConfig_t config = detail::nccl::nonblocking_config();
  ncclComm_t comm = nullptr;
  ncclResult_t state = ncclCommInitRankConfig(&comm, place.size(), id, place.rank(), &config);
  if (state == ncclInProgress || state == ncclSuccess) state = detail::nccl::settle(comm, deadline);
  if (state != ncclSuccess) {
    const std::string why = ncclGetErrorString(state);
    if (comm != nullptr) (void)ncclCommAbort(comm);
    if (state == ncclInProgress)
      throw Timeout(
          fmt::format("{}: not all ranks came within {} ms\n"
                      "  NCCL does not tell which; look at the other ranks' logs",
                      where, options.limit.count()));
    throw Error(
        fmt::format("{}: ncclCommInitRankConfig: {}\n  NCCL_DEBUG=WARN says more", where, why));
  }
  log(LogLevel::info, "engine nccl: rank {} of {} on device {}, NCCL {}; it adds in its own order",
      place.rank(), place.size(), options.device, nccl_version());
  return std::make_shared<detail::nccl::NcclEngine>(comm, place.rank(), place.size(),
                                                    options.device);
}

}  // namespace tutti
