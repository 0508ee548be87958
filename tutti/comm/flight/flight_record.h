/// The flight record: what every rank of every group of this process did last.
///
/// Group (and the c10d backend) notes the last 1,000 operations of each of its members, whatever
/// the engine: a few stores, always on. When a group fails, the process writes a file that `tutti
/// doctor record FILES...` compares with those of the others, to say who diverged or stopped, and
/// where.
///
/// The file goes to the folder in TUTTI_RECORD_DIR; without it to `tutti-<job>` in the system's
/// temporary folder when members are of several processes, and nowhere when all are threads of this
/// one. Groups of one member are not recorded.
///
/// Thread rule: every function may be called from any thread at any time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/engine/detail/call.h"

namespace tutti {

/// One operation of one rank.
struct FlightOperation {
  enum class State : uint8_t { submitted, done, failed };
  uint64_t number = 0;  ///< from 1 on; collectives and messages are counted apart
  detail::Call call;
  std::string file;  ///< where in the program it was called
  uint32_t line = 0;
  std::string function;
  State state = State::submitted;
  int64_t begun_us = 0;  ///< since 1970; 0 not taken (synchronous calls read no clock)
  int64_t ended_us = 0;
};
std::string_view name_of(FlightOperation::State state) noexcept;

/// What one member of one group did last, oldest first.
struct FlightGroup {
  std::string name;  ///< the same on all its members
  std::string engine;
  int rank = 0;
  int size = 1;
  std::string failure;  ///< the error with which it ended; "" none
  std::vector<FlightOperation> operations;
};

struct FlightRecord {
  std::string job;  ///< "" unknown
  int worker = -1;  ///< number of this process in the job; -1 unknown
  int num_workers = 0;
  std::string host;
  int pid = 0;
  std::vector<FlightGroup> groups;
};

/// Names this process in its record and in the record's file; join() does it.
///
/// launcher_tells  where that file is: then this process does not
void set_flight_identity(std::string job, int worker, int num_workers, bool launcher_tells = false);

/// Where the record of this worker of `job` goes by itself when a group of several processes fails.
std::filesystem::path flight_path(const std::string& job, int worker);
/// Takes that away, and its folder when that is the job's own and nothing else is in it.
void remove_flight_record(const std::string& job, int worker) noexcept;

/// The record as it is now.
FlightRecord flight_record();

/// Writes it to a file of JSON. Throws Error with path and cause.
void write_flight_record(const std::filesystem::path& path);

/// The record as JSON, and back. Reading throws DataError with `path` and the field.
std::string to_json(const FlightRecord& record);
FlightRecord parse_flight_record(std::string_view text, const std::filesystem::path& path);

}  // namespace tutti
