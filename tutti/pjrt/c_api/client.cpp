#include "tutti/pjrt/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <map>
#include <mutex>
#include <ranges>
#include <thread>
#include <type_traits>
#include <utility>

#include <protozero/pbf_writer.hpp>

#include "tutti/base/error.h"
#include "tutti/pjrt/c_api/detail/handles.h"
#include "tutti/pjrt/c_api/detail/within.h"

namespace tutti::pjrt {
namespace {

using detail::arguments;

/// Never destroyed: a plugin's threads go on until the process ends.
template <class T>
T* kept_for_good() {
  return std::make_unique<T>().release();
}

/// Once a path: a plugin is set up once.
const detail::Api& set_up(const std::string& path) {
  static std::mutex mutex;
  static auto& all = *kept_for_good<std::map<std::string, detail::Api>>();
  const std::lock_guard lock(mutex);
  auto found = all.find(path);
  if (found != all.end()) return found->second;
  detail::Api api(path);
  detail::initialize(api);
  return all.emplace(path, std::move(api)).first->second;
}

/// The state of a client that is made, or is not: one that is not in time may ask for values yet.
std::shared_ptr<detail::ClientState> begun(const detail::Api& api,
                                           std::shared_ptr<KeyValues> key_values) {
  static std::mutex mutex;
  static auto& all = *kept_for_good<std::vector<std::shared_ptr<detail::ClientState>>>();
  const std::lock_guard lock(mutex);
  all.push_back(
      std::make_shared<detail::ClientState>(detail::ClientState{.api = api,
                                                                .client = nullptr,
                                                                .devices = {},
                                                                .facts = {},
                                                                .key_values = std::move(key_values),
                                                                .process = 0,
                                                                .all_devices = {}}));
  return all.back();
}

PJRT_Client* made_client(const detail::ClientState& state, const Options& options) {
  try {
    return detail::make_client(state.api, options, state.key_values.get());
  } catch (const Error&) {
    state.require_all("PJRT_Client_Create");
    throw;
  }
}

/// All processes see all devices in the same order, and their own in that.
void find_all_devices(detail::ClientState& state) {
  std::map<int, PJRT_Device*> own;
  for (size_t i = 0; i < state.devices.size(); ++i)
    own.emplace(state.facts.devices[i].id, state.devices[i]);
  std::ranges::copy(own | std::views::values, state.devices.begin());
  std::ranges::sort(state.facts.devices, {}, &DeviceFacts::id);
  state.all_devices = detail::all_devices_of(state.api, state.client);
  std::ranges::sort(state.all_devices, {},
                    [](const DeviceFacts& device) { return std::pair(device.process, device.id); });
  auto process = arguments<PJRT_Client_ProcessIndex_Args>();
  process.client = state.client;
  state.api.call(&PJRT_Api::PJRT_Client_ProcessIndex, "PJRT_Client_ProcessIndex", process);
  state.process = process.process_index;
}

std::shared_ptr<detail::ClientState> load(const std::string& path, const Options& options,
                                          std::shared_ptr<KeyValues> key_values) {
  const auto state = begun(set_up(path), std::move(key_values));
  state->client = made_client(*state, options);
  state->facts = detail::facts_of(state->api, state->client);
  auto devices = arguments<PJRT_Client_AddressableDevices_Args>();
  devices.client = state->client;
  state->api.call(&PJRT_Api::PJRT_Client_AddressableDevices, "PJRT_Client_AddressableDevices",
                  devices);
  state->devices.assign(devices.addressable_devices,
                        devices.addressable_devices + devices.num_addressable_devices);
  state->all_devices = state->facts.devices;
  if (state->key_values) find_all_devices(*state);
  return state;
}

/// Clients by path and options: whoever asks for one while another loads it waits for that.
struct Opened {
  std::timed_mutex mutex;
  std::shared_ptr<detail::ClientState> state;  // under mutex
};

std::shared_ptr<Opened> opened(const std::string& path, const Options& options) {
  static std::mutex mutex;
  static auto& all =
      *kept_for_good<std::map<std::pair<std::string, Options>, std::shared_ptr<Opened>>>();
  const std::lock_guard lock(mutex);
  auto& entry = all[{path, options}];
  if (!entry) entry = std::make_shared<Opened>();
  return entry;
}

/// Ids of the devices that run a program, by replica; none where the plugin may choose the first.
std::vector<int64_t> assigned(const detail::ClientState& client, int replicas) {
  std::vector<int64_t> ids;
  if (!client.key_values) return ids;
  const bool all = replicas == std::ssize(client.all_devices);
  for (const DeviceFacts& device : all ? client.all_devices : client.facts.devices)
    if (std::ssize(ids) < replicas) ids.push_back(device.id);
  return ids;
}

/// CompileOptionsProto of XLA, its ExecutableBuildOptionsProto and the DeviceAssignmentProto there.
std::string compile_options(int replicas, const std::vector<int64_t>& ids) {
  enum : protozero::pbf_tag_type {
    kBuildOptions = 3,
    kOrdinal = 1,
    kReplicas = 4,
    kPartitions = 5,
    kAssignment = 9,
    kReplicaCount = 1,
    kComputationCount = 2,
    kComputationDevices = 3,
    kReplicaDeviceIds = 1
  };
  std::string build, all, assignment, devices;
  protozero::pbf_writer writer(build);
  writer.add_int64(kOrdinal, -1);
  writer.add_int64(kReplicas, replicas);
  writer.add_int64(kPartitions, 1);
  if (!ids.empty()) {
    protozero::pbf_writer(devices).add_packed_int64(kReplicaDeviceIds, ids.begin(), ids.end());
    protozero::pbf_writer assigns(assignment);
    assigns.add_int32(kReplicaCount, replicas);
    assigns.add_int32(kComputationCount, 1);
    assigns.add_message(kComputationDevices, devices);
    writer.add_message(kAssignment, assignment);
  }
  protozero::pbf_writer(all).add_message(kBuildOptions, build);
  return all;
}

/// Which of the client's devices run it, in the order of its lists of arguments.
std::vector<size_t> devices_of(const detail::ClientState& client, PJRT_LoadedExecutable* loaded) {
  auto devices = arguments<PJRT_LoadedExecutable_AddressableDevices_Args>();
  devices.executable = loaded;
  client.api.call(&PJRT_Api::PJRT_LoadedExecutable_AddressableDevices,
                  "PJRT_LoadedExecutable_AddressableDevices", devices);
  std::vector<size_t> order;
  for (size_t i = 0; i < devices.num_addressable_devices; ++i)
    order.push_back(
        static_cast<size_t>(std::ranges::find(client.devices, devices.addressable_devices[i]) -
                            client.devices.begin()));
  return order;
}

std::shared_ptr<detail::ProgramState> compiled(const std::shared_ptr<detail::ClientState>& client,
                                               std::string code, int replicas) {
  constexpr std::string_view kFormat = "mlir";
  auto program = arguments<PJRT_Program>();
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  const std::string build = compile_options(replicas, assigned(*client, replicas));
  auto args = arguments<PJRT_Client_Compile_Args>();
  args.client = client->client;
  args.program = &program;
  args.compile_options = build.data();
  args.compile_options_size = build.size();
  client->api.call(&PJRT_Api::PJRT_Client_Compile, "PJRT_Client_Compile", args);

  auto state = std::make_shared<detail::ProgramState>();
  state->client = client;
  state->executable = args.executable;
  state->replicas = std::min(replicas, static_cast<int>(client->devices.size()));
  state->num_outputs = detail::outputs_of(*state);
  state->devices = devices_of(*client, args.executable);
  for (const size_t device : state->devices)
    if (std::ssize(state->devices) != state->replicas || device >= state->devices.size())
      client->api.fail("PJRT_Client_Compile",
                       fmt::format("{} replicas are to run on other devices here than the first {}",
                                   replicas, state->replicas));
  return state;
}

/// A program says of itself for how many it is; one as bytecode does not, here.
void require_replicas(std::string_view text, int replicas) {
  constexpr std::string_view kSays = "mhlo.num_replicas = ";
  const size_t at = text.find(kSays);
  if (at == std::string_view::npos) return;
  int said = 0;
  const char* const begin = text.data() + at + kSays.size();
  std::from_chars(begin, text.data() + text.size(), said);
  if (said != replicas)
    throw UsageError(
        fmt::format("a program for {} replicas, to be compiled for {}", said, replicas));
}

}  // namespace

bool available() noexcept { return true; }

Client Client::open(const std::string& path, const ClientOptions& options) {
  const auto entry = opened(path, options.options);
  const std::unique_lock lock(entry->mutex, time_after(options.limit));
  if (!lock)
    throw Timeout(fmt::format("plugin {}: another thread has not loaded it within {} s", path,
                              std::chrono::duration<double>(options.limit).count()));
  if (!entry->state) {
    if (options.key_values)
      detail::probe_loading(path, options.limit);
    else
      probe_plugin(path, options.options, options.limit);
    entry->state =
        detail::within(options.limit,
                       fmt::format("plugin {}: not loaded, though a process of its own had it in "
                                   "time (does another one hold its devices?),",
                                   path),
                       [path, wanted = options.options, key_values = options.key_values] {
                         return load(path, wanted, key_values);
                       });
  }
  return Client(entry->state);
}

const PluginFacts& Client::facts() const { return state_->facts; }
int Client::num_devices() const { return static_cast<int>(state_->devices.size()); }
int Client::process() const { return state_->process; }
const std::vector<DeviceFacts>& Client::all_devices() const { return state_->all_devices; }

Buffer Client::to_device(const Array& array, int device) const {
  if (device < 0 || device >= num_devices())
    throw UsageError(fmt::format("{}: there is no device {}; it has {}", state_->api.words(),
                                 device, num_devices()));
  auto args = arguments<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = state_->client;
  args.data = array.data();
  args.type = detail::type_of(array.dtype());
  args.dims = array.shape().data();
  args.num_dims = array.shape().size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = state_->devices[static_cast<size_t>(device)];
  state_->api.call(&PJRT_Api::PJRT_Client_BufferFromHostBuffer, "PJRT_Client_BufferFromHostBuffer",
                   args);
  auto buffer = std::make_shared<detail::BufferState>(state_, args.buffer);
  detail::watch(state_, args.done_with_host_buffer);
  return Buffer(std::move(buffer));
}

Program Client::compile(std::string_view stablehlo, const CompileOptions& options) const {
  const int all = static_cast<int>(all_devices().size());
  if (options.replicas < 1 || (options.replicas > num_devices() && options.replicas != all))
    throw UsageError(
        fmt::format("{} replicas on {} devices of {}: from 1 to {} are possible{}",
                    options.replicas, num_devices(), state_->api.words(), num_devices(),
                    all > num_devices() ? fmt::format(", or the {} of all processes", all) : ""));
  require_replicas(stablehlo, options.replicas);
  return Program(detail::within(
      options.limit, fmt::format("{}, PJRT_Client_Compile: not done", state_->api.words()),
      [client = state_, code = std::string(stablehlo), replicas = options.replicas]() mutable {
        return compiled(client, std::move(code), replicas);
      }));
}

DType Buffer::dtype() const {
  auto args = arguments<PJRT_Buffer_ElementType_Args>();
  args.buffer = state_->buffer;
  const detail::Api& api = state_->client->api;
  api.call(&PJRT_Api::PJRT_Buffer_ElementType, "PJRT_Buffer_ElementType", args);
  return detail::dtype_of(api, "PJRT_Buffer_ElementType", args.type);
}

std::vector<int64_t> Buffer::shape() const {
  auto args = arguments<PJRT_Buffer_Dimensions_Args>();
  args.buffer = state_->buffer;
  state_->client->api.call(&PJRT_Api::PJRT_Buffer_Dimensions, "PJRT_Buffer_Dimensions", args);
  return {args.dims, args.dims + args.num_dims};
}

Array Buffer::to_host(const Deadline& deadline) const {
  const detail::Api& api = state_->client->api;
  const std::vector<int64_t> dims = shape();
  Array array = Array::zeros(dtype(), dims);
  // Row by row, whatever order the device keeps.
  std::vector<int64_t> order;
  for (size_t i = dims.size(); i > 0; --i) order.push_back(static_cast<int64_t>(i) - 1);
  auto layout = arguments<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = sizeof layout.tiled;
  layout.tiled.minor_to_major = order.data();
  layout.tiled.minor_to_major_size = order.size();
  auto args = arguments<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = state_->buffer;
  args.host_layout = &layout;
  args.dst = array.data();
  args.dst_size = static_cast<size_t>(array.num_bytes());
  api.call(&PJRT_Api::PJRT_Buffer_ToHostBuffer, "PJRT_Buffer_ToHostBuffer", args);
  const auto copied = detail::watch(state_->client, args.event);
  copied->keep = array;  // whatever is thrown, the plugin may write there yet
  if (!detail::await(*copied, "PJRT_Buffer_ToHostBuffer", deadline))
    throw Timeout(fmt::format("{}: a buffer is not on the host within {} s", api.words(),
                              std::chrono::duration<double>(deadline.limit()).count()));
  return array;
}

}  // namespace tutti::pjrt
