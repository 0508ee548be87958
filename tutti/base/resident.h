/// Memory of this process that lies in RAM. Thread rule: any.
#pragma once

#include <cstdint>

namespace tutti {

/// In bytes: now, and the most since forget_peak_resident(); 0 where the kernel does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();
void forget_peak_resident();

}  // namespace tutti
