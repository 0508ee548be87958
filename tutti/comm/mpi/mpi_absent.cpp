// Compiled instead of the engine where CMake finds no MPI library.
#include "tutti/base/error.h"
#include "tutti/comm/mpi/mpi.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw UsageError(
      fmt::format("{}: this build has no MPI library; install one (Debian: libopenmpi-dev) and "
                  "configure again, or use engine \"tcp\"",
                  what));
}

}  // namespace

bool mpi_available() noexcept { return false; }
std::shared_ptr<Engine> make_mpi(const MpiOptions& /*options*/) { refuse("engine \"mpi\""); }
std::unique_ptr<MeetingPlace> make_mpi_meeting_place(Millis /*limit*/) {
  refuse("meeting through MPI");
}

}  // namespace tutti
