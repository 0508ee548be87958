/// The engine for memory of CUDA devices: NCCL, called directly. One rank, one device.
///
/// NCCL adds in an order of its own: sums are not those of reduction_shape(), which is flat here
/// and says only how many ranks there are. It knows neither tags nor any sender, no operation on
/// bits, and carries out messages and collectives in one order, that of their calls; messages that
/// cross go in one batch. What it has not throws UsageError. Without NCCL in the build make_nccl()
/// does. docs/design/nccl_engine.md says what was run and what was not. Thread rule: as Engine.
#pragma once

#include <memory>
#include <string>

#include "tutti/comm/engine/engine.h"
#include "tutti/net/meeting_place.h"

namespace tutti {

struct NcclOptions {
  int device = 0;                    ///< index of this rank's CUDA device
  Millis limit = kDefaultTimeLimit;  ///< for all ranks to come
};

/// Whether this build has NCCL.
bool nccl_available() noexcept;

/// Of the NCCL that this build runs with: "2.28.9"; empty where it has none.
std::string nccl_version();

/// What ranks have to know of each other before they make a group.
struct NcclFacts {
  std::string version;  ///< nccl_version()
  int cuda = 0;         ///< CUDA's run-time library: 13000 is 13.0
  std::string gpu;      ///< the device's address on its host's PCI bus: "0000:1b:00.0"
};
/// Of this process with that device. Throws UsageError where there is no NCCL, Error in CUDA's
/// words.
NcclFacts nccl_facts(int device);

/// Collective: the engine of `place`'s rank. The place is needed only here. Throws Timeout when not
/// all ranks come, Error in NCCL's or CUDA's words.
std::shared_ptr<Engine> make_nccl(MeetingPlace& place, const NcclOptions& options = {});

}  // namespace tutti
