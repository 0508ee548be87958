/// Where memory lives, and an opaque handle for a device's queue of work.
#pragma once

#include <cstdint>

namespace tutti {

/// A device's stream (cudaStream_t on CUDA), opaque here: floors 0 to 2 only hand it on.
struct Stream {
  uintptr_t handle = 0;
  bool operator==(const Stream&) const = default;
};

/// Host memory, or memory of one CUDA device together with the stream that orders its use.
struct Place {
  enum class Kind : uint8_t { host, cuda };
  Kind kind = Kind::host;
  int16_t device = -1;  ///< index of the device; -1 on the host
  Stream stream{};
  bool operator==(const Place&) const = default;
};

}  // namespace tutti
