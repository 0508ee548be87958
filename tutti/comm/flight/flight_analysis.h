/// What the flight records of a job say together: who diverged or stopped, and where.
/// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>

#include "tutti/comm/flight/flight_record.h"

namespace tutti {

/// A record with the name under which messages speak of it.
struct FlightFile {
  std::string name;
  FlightRecord record;
};

/// In words, group by group, those with something to tell first:
///   which ranks called different collectives under one number, with both places (and whether one
///   seems to have left a call out); which ranks are in the same operation, which are behind and
///   what they did last; which messages are waited for; what ended the group; whose record is
///   missing; where to look first.
/// Throws UsageError when there are no files or they are of several jobs, DataError when two files
/// hold the same rank of a group or disagree on its size.
std::string analyse_flight_records(std::span<const FlightFile> files);

}  // namespace tutti
