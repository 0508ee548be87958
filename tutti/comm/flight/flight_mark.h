/// FlightMark: where an operation stands in its member's FlightLog. Thread rule: a plain value.
#pragma once

#include <cstdint>

namespace tutti {

struct FlightMark {
  uint64_t position = 0;  ///< among all operations, from 1 on; 0: not logged
  uint64_t number = 0;    ///< among collectives, from 1 on; 0: a message
};

}  // namespace tutti
