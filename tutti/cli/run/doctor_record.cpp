// tutti doctor record: what the flight records of a job's processes say together.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/comm/flight/flight_analysis.h"

namespace tutti::cli {
namespace {

FlightFile read_record(const std::string& path) {
  const MappedFile file = map_file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  return {std::filesystem::path(path).filename().string(), parse_flight_record(text, path)};
}

}  // namespace

void add_doctor_record(Command& doctor) {
  auto paths = std::make_shared<std::vector<std::string>>();
  Command& command = doctor.command(
      "record", "Say who diverged or stopped, from the flight records of a failed job");
  command.add("FILES", "TEXT", paths.get(), some_name(), "Flight records, one a process").required =
      true;
  command.footer =
      "A process writes its record when one of its groups fails: into the folder "
      "TUTTI_RECORD_DIR,\n"
      "else into tutti-JOB in the system's temporary folder.\n\n"
      "Example:\n  tutti doctor record /tmp/tutti-1a2b/*.json\n\n"
      "Exit code: 0, or 2 when a file is damaged or of another job.";
  command.action = [paths] {
    std::vector<FlightFile> files;
    for (const std::string& path : *paths) files.push_back(read_record(path));
    std::fputs(analyse_flight_records(files).c_str(), stdout);
    return 0;
  };
}

}  // namespace tutti::cli
