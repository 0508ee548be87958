// Compiled where pjrt_c_api.h is not there (TUTTI_WITH_PJRT).
#include "tutti/base/error.h"
#include "tutti/pjrt/client.h"

namespace tutti::pjrt {

struct detail::BufferState {};
struct detail::ClientState {};
struct detail::EventState {};
struct detail::ProgramState {};

namespace {

[[noreturn]] void absent() {
  throw UsageError(
      "PJRT is not in this build: its header was not there. tools/setup --pjrt fetches it, with "
      "the plugin for CPUs; then configure and build again");
}

}  // namespace

bool available() noexcept { return false; }
PluginFacts probe_plugin(const std::string&, const Options&, Millis) { absent(); }
Client Client::open(const std::string&, const ClientOptions&) { absent(); }
const PluginFacts& Client::facts() const { absent(); }
int Client::num_devices() const { absent(); }
int Client::process() const { absent(); }
const std::vector<DeviceFacts>& Client::all_devices() const { absent(); }
Buffer Client::to_device(const Array&, int) const { absent(); }
Program Client::compile(std::string_view, const CompileOptions&) const { absent(); }
DType Buffer::dtype() const { absent(); }
std::vector<int64_t> Buffer::shape() const { absent(); }
Array Buffer::to_host(const Deadline&) const { absent(); }
int Program::replicas() const { absent(); }
int Program::num_outputs() const { absent(); }
std::vector<ArrayType> Program::output_types() const { absent(); }
std::optional<std::vector<ArrayType>> Program::argument_types() const { absent(); }
Results Program::run(const std::vector<std::vector<const Buffer*>>&, Millis) const { absent(); }
void Results::wait(const Deadline&) const { absent(); }

}  // namespace tutti::pjrt
