// A PJRT plugin of several processes, made of one of a single process (PLUGIN_OF_HOSTS): each
// process has all devices in a client of its own, shows some as its own, and a program for all of
// them runs everywhere, once arguments of the others' devices have come as files
// (PLUGIN_OF_HOSTS_FOLDER). For tests: nothing of it is fast.
//
// Told node_id of num_nodes and its own cpu_device_count; processes meet at the key-value store.
// A process that does not come within a minute, or is lost, is an error.
#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr auto kPatience = std::chrono::seconds(60);

const PJRT_Api* inner = nullptr;

template <class Args>
Args arguments() {
  Args args{};
  args.struct_size = sizeof args;
  return args;
}

// ---- errors: the inner plugin's, and those of this file ----

struct OwnError {
  PJRT_Error_Code code;
  std::string words;
};

std::mutex& lock_of_all() {
  static std::mutex mutex;
  return mutex;
}

std::map<const PJRT_Error*, std::unique_ptr<OwnError>>& own_errors() {
  static auto* const all =
      std::make_unique<std::map<const PJRT_Error*, std::unique_ptr<OwnError>>>().release();
  return *all;
}

PJRT_Error* fail(PJRT_Error_Code code, std::string words) {
  const std::lock_guard lock(lock_of_all());
  auto made = std::make_unique<OwnError>(OwnError{code, "plugin of hosts: " + std::move(words)});
  auto* const error = reinterpret_cast<PJRT_Error*>(made.get());
  own_errors().emplace(error, std::move(made));
  return error;
}

OwnError* own(const PJRT_Error* error) {
  const std::lock_guard lock(lock_of_all());
  const auto found = own_errors().find(error);
  return found == own_errors().end() ? nullptr : found->second.get();
}

void error_message(PJRT_Error_Message_Args* args) {
  const OwnError* const error = own(args->error);
  if (error == nullptr) return inner->PJRT_Error_Message(args);
  args->message = error->words.data();
  args->message_size = error->words.size();
}

PJRT_Error* error_code(PJRT_Error_GetCode_Args* args) {
  const OwnError* const error = own(args->error);
  if (error == nullptr) return inner->PJRT_Error_GetCode(args);
  args->code = error->code;
  return nullptr;
}

void destroy_error(PJRT_Error_Destroy_Args* args) {
  if (own(args->error) == nullptr) return inner->PJRT_Error_Destroy(args);
  const std::lock_guard lock(lock_of_all());
  own_errors().erase(args->error);
}

PJRT_Error* made_by_callback(PJRT_Error_Code code, const char* words, size_t size) {
  return fail(code, std::string(words, size));
}
PJRT_CallbackError make_error = made_by_callback;

// ---- the processes ----

struct Hosts {
  int64_t node = 0, nodes = 1;
  PJRT_Client_Create_Args create{};  // its callbacks alone
  std::vector<PJRT_Device*> devices;
  std::vector<int> process_of;  // by device
  std::vector<PJRT_Device*> own;
  int64_t executions = 0;  // of programs of several processes
};

struct Seat {
  Hosts* hosts = nullptr;
  size_t device = 0;
};

// Never destroyed: clients are not either.
template <class Key>
std::map<Key, Seat>& seats() {
  static auto* const all = std::make_unique<std::map<Key, Seat>>().release();
  return *all;
}

template <class Key>
Seat seat_of(Key key) {
  const std::lock_guard lock(lock_of_all());
  const auto found = seats<Key>().find(key);
  return found == seats<Key>().end() ? Seat{} : found->second;
}

PJRT_Error* put(const Hosts& hosts, const std::string& key, const std::string& value) {
  auto args = arguments<PJRT_KeyValuePutCallback_Args>();
  args.key = key.data();
  args.key_size = key.size();
  args.value = value.data();
  args.value_size = value.size();
  args.callback_error = &make_error;
  args.user_arg = hosts.create.kv_put_user_arg;
  return hosts.create.kv_put_callback(&args);
}

PJRT_Error* get(const Hosts& hosts, const std::string& key, std::string& value) {
  auto args = arguments<PJRT_KeyValueGetCallback_Args>();
  args.key = key.data();
  args.key_size = key.size();
  args.timeout_in_ms = static_cast<int>(std::chrono::milliseconds(kPatience).count());
  args.callback_error = &make_error;
  args.user_arg = hosts.create.kv_get_user_arg;
  if (PJRT_Error* const error = hosts.create.kv_get_callback(&args)) return error;
  value.assign(args.value, args.value_size);
  args.value_deleter_callback(args.value);
  return nullptr;
}

// An error where a process of the job is lost: the store says so whatever it is asked.
PJRT_Error* anybody_lost(const Hosts& hosts) {
  const std::string key = "nobody's";
  auto args = arguments<PJRT_KeyValueTryGetCallback_Args>();
  args.key = key.data();
  args.key_size = key.size();
  args.callback_error = &make_error;
  args.user_arg = hosts.create.kv_try_get_user_arg;
  PJRT_Error* const error = hosts.create.kv_try_get_callback(&args);
  if (error == nullptr) return nullptr;
  if (own(error)->code != PJRT_Error_Code_NOT_FOUND) return error;
  auto destroy = arguments<PJRT_Error_Destroy_Args>();
  destroy.error = error;
  destroy_error(&destroy);
  return nullptr;
}

// How many devices each process has.
PJRT_Error* meet(const Hosts& hosts, int64_t own_devices, std::vector<int64_t>& counts) {
  counts.assign(static_cast<size_t>(hosts.nodes), own_devices);
  if (hosts.nodes == 1) return nullptr;
  if (hosts.create.kv_get_callback == nullptr)
    return fail(PJRT_Error_Code_INVALID_ARGUMENT, "no key-value store was given");
  const auto key = [](int64_t node) { return "devices of " + std::to_string(node); };
  if (PJRT_Error* const error = put(hosts, key(hosts.node), std::to_string(own_devices)))
    return error;
  for (int64_t node = 0; node < hosts.nodes; ++node) {
    std::string value;
    if (PJRT_Error* const error = get(hosts, key(node), value)) return error;
    counts[static_cast<size_t>(node)] = std::stoll(value);
  }
  return nullptr;
}

PJRT_Error* seat_devices(PJRT_Client* client, const std::vector<int64_t>& counts, Hosts& hosts) {
  auto devices = arguments<PJRT_Client_Devices_Args>();
  devices.client = client;
  if (PJRT_Error* const error = inner->PJRT_Client_Devices(&devices)) return error;
  hosts.devices.assign(devices.devices, devices.devices + devices.num_devices);
  for (int64_t node = 0; node < hosts.nodes; ++node)
    hosts.process_of.insert(hosts.process_of.end(),
                            static_cast<size_t>(counts[static_cast<size_t>(node)]),
                            static_cast<int>(node));
  if (hosts.process_of.size() != hosts.devices.size())
    return fail(PJRT_Error_Code_INTERNAL, "the inner plugin has another number of devices");
  for (size_t i = 0; i < hosts.devices.size(); ++i) {
    auto described = arguments<PJRT_Device_GetDescription_Args>();
    described.device = hosts.devices[i];
    if (PJRT_Error* const error = inner->PJRT_Device_GetDescription(&described)) return error;
    const std::lock_guard lock(lock_of_all());
    seats<PJRT_Device*>().insert_or_assign(hosts.devices[i], Seat{&hosts, i});
    seats<PJRT_DeviceDescription*>().insert_or_assign(described.device_description,
                                                      Seat{&hosts, i});
    if (hosts.process_of[i] == hosts.node) hosts.own.push_back(hosts.devices[i]);
  }
  const std::lock_guard lock(lock_of_all());
  seats<PJRT_Client*>().insert_or_assign(client, Seat{&hosts, 0});
  return nullptr;
}

PJRT_Error* create(PJRT_Client_Create_Args* args) {
  auto hosts = std::make_unique<Hosts>();
  int64_t own_devices = 1;
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue& option = args->create_options[i];
    const std::string_view name(option.name, option.name_size);
    if (name == "node_id") hosts->node = option.int64_value;
    if (name == "num_nodes") hosts->nodes = option.int64_value;
    if (name == "cpu_device_count") own_devices = option.int64_value;
  }
  hosts->create = *args;
  std::vector<int64_t> counts;
  if (PJRT_Error* const error = meet(*hosts, own_devices, counts)) return error;
  int64_t all = 0;
  for (const int64_t count : counts) all += count;
  const std::string_view name = "cpu_device_count";
  auto option = arguments<PJRT_NamedValue>();
  option.name = name.data();
  option.name_size = name.size();
  option.type = PJRT_NamedValue_kInt64;
  option.int64_value = all;
  option.value_size = 1;
  auto whole = arguments<PJRT_Client_Create_Args>();
  whole.create_options = &option;
  whole.num_options = 1;
  if (PJRT_Error* const error = inner->PJRT_Client_Create(&whole)) return error;
  args->client = whole.client;
  return seat_devices(whole.client, counts, *hosts.release());
}

PJRT_Error* addressable(PJRT_Client_AddressableDevices_Args* args) {
  const std::vector<PJRT_Device*>& own = seat_of(args->client).hosts->own;
  args->addressable_devices = own.data();
  args->num_addressable_devices = own.size();
  return nullptr;
}

PJRT_Error* process_index(PJRT_Client_ProcessIndex_Args* args) {
  args->process_index = static_cast<int>(seat_of(args->client).hosts->node);
  return nullptr;
}

PJRT_Error* device_process(PJRT_DeviceDescription_ProcessIndex_Args* args) {
  const Seat seat = seat_of(args->device_description);
  args->process_index = seat.hosts->process_of[seat.device];
  return nullptr;
}

PJRT_Error* is_addressable(PJRT_Device_IsAddressable_Args* args) {
  const Seat seat = seat_of(args->device);
  args->is_addressable = seat.hosts->process_of[seat.device] == seat.hosts->node;
  return nullptr;
}

// ---- programs ----

PJRT_Error* all_devices(PJRT_LoadedExecutable* executable, std::vector<PJRT_Device*>& devices) {
  auto args = arguments<PJRT_LoadedExecutable_AddressableDevices_Args>();
  args.executable = executable;
  if (PJRT_Error* const error = inner->PJRT_LoadedExecutable_AddressableDevices(&args))
    return error;
  devices.assign(args.addressable_devices, args.addressable_devices + args.num_addressable_devices);
  return nullptr;
}

bool is_own(PJRT_Device* device) {
  const Seat seat = seat_of(device);
  return seat.hosts->process_of[seat.device] == seat.hosts->node;
}

PJRT_Error* addressable_of(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  std::vector<PJRT_Device*> devices;
  if (PJRT_Error* const error = all_devices(args->executable, devices)) return error;
  std::erase_if(devices, [](PJRT_Device* device) { return !is_own(device); });
  static auto* const kept =
      std::make_unique<std::map<PJRT_LoadedExecutable*, std::vector<PJRT_Device*>>>().release();
  const std::lock_guard lock(lock_of_all());
  const auto& own = kept->insert_or_assign(args->executable, std::move(devices)).first->second;
  args->addressable_devices = own.data();
  args->num_addressable_devices = own.size();
  return nullptr;
}

PJRT_Error* finish(PJRT_Event* event) {
  auto wait = arguments<PJRT_Event_Await_Args>();
  wait.event = event;
  PJRT_Error* const error = inner->PJRT_Event_Await(&wait);
  auto destroy = arguments<PJRT_Event_Destroy_Args>();
  destroy.event = event;
  inner->PJRT_Event_Destroy(&destroy);
  return error;
}

void destroy(PJRT_Buffer* buffer) {
  auto args = arguments<PJRT_Buffer_Destroy_Args>();
  args.buffer = buffer;
  inner->PJRT_Buffer_Destroy(&args);
}

/// An argument as it travels: type, dimensions, elements row by row.
struct Travelling {
  PJRT_Buffer_Type type{};
  std::vector<int64_t> dims;
  std::string bytes;
};

PJRT_Error* read(PJRT_Buffer* buffer, Travelling& made) {
  auto type = arguments<PJRT_Buffer_ElementType_Args>();
  type.buffer = buffer;
  if (PJRT_Error* const error = inner->PJRT_Buffer_ElementType(&type)) return error;
  auto dims = arguments<PJRT_Buffer_Dimensions_Args>();
  dims.buffer = buffer;
  if (PJRT_Error* const error = inner->PJRT_Buffer_Dimensions(&dims)) return error;
  made.type = type.type;
  made.dims.assign(dims.dims, dims.dims + dims.num_dims);
  std::vector<int64_t> order;
  for (size_t i = made.dims.size(); i > 0; --i) order.push_back(static_cast<int64_t>(i) - 1);
  auto layout = arguments<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = sizeof layout.tiled;
  layout.tiled.minor_to_major = order.data();
  layout.tiled.minor_to_major_size = order.size();
  auto copy = arguments<PJRT_Buffer_ToHostBuffer_Args>();
  copy.src = buffer;
  copy.host_layout = &layout;
  if (PJRT_Error* const error = inner->PJRT_Buffer_ToHostBuffer(&copy)) return error;
  made.bytes.resize(copy.dst_size);
  copy.dst = made.bytes.data();
  if (PJRT_Error* const error = inner->PJRT_Buffer_ToHostBuffer(&copy)) return error;
  return finish(copy.event);
}

PJRT_Error* write(PJRT_Client* client, PJRT_Device* device, const Travelling& from,
                  PJRT_Buffer*& made) {
  auto args = arguments<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = client;
  args.data = from.bytes.data();
  args.type = from.type;
  args.dims = from.dims.data();
  args.num_dims = from.dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = device;
  if (PJRT_Error* const error = inner->PJRT_Client_BufferFromHostBuffer(&args)) return error;
  made = args.buffer;
  return finish(args.done_with_host_buffer);
}

void add(std::string& text, int64_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

int64_t take(std::string_view& text) {
  int64_t number = 0;
  std::memcpy(&number, text.data(), sizeof number);
  text.remove_prefix(sizeof number);
  return number;
}

std::string text_of(const Travelling& one) {
  std::string text;
  add(text, one.type);
  add(text, static_cast<int64_t>(one.dims.size()));
  for (const int64_t dim : one.dims) add(text, dim);
  add(text, static_cast<int64_t>(one.bytes.size()));
  return text + one.bytes;
}

Travelling next_of(std::string_view& text) {
  Travelling one;
  one.type = static_cast<PJRT_Buffer_Type>(take(text));
  one.dims.resize(static_cast<size_t>(take(text)));
  for (int64_t& dim : one.dims) dim = take(text);
  one.bytes.resize(static_cast<size_t>(take(text)));
  std::memcpy(one.bytes.data(), text.data(), one.bytes.size());
  text.remove_prefix(one.bytes.size());
  return one;
}

std::filesystem::path file_of(const Hosts& hosts, int64_t node, int64_t execution) {
  const char* const folder = std::getenv("PLUGIN_OF_HOSTS_FOLDER");
  return std::filesystem::path(folder == nullptr ? "." : folder) /
         (std::to_string(hosts.devices.size()) + "." + std::to_string(execution) + "." +
          std::to_string(node));
}

// Peers that have begun this execution have ended the one before the last.
void leave(const Hosts& hosts, const std::string& text) {
  const auto path = file_of(hosts, hosts.node, hosts.executions);
  const auto beside = path.string() + ".new";
  std::ofstream(beside, std::ios::binary) << text;
  std::filesystem::rename(beside, path);
  std::error_code none;
  std::filesystem::remove(file_of(hosts, hosts.node, hosts.executions - 2), none);
}

PJRT_Error* wait_for(const Hosts& hosts, int64_t node, std::string& text) {
  const auto path = file_of(hosts, node, hosts.executions);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int tries = 0; !std::filesystem::exists(path); ++tries) {
    if (std::chrono::steady_clock::now() > end)
      return fail(PJRT_Error_Code_DEADLINE_EXCEEDED, "process " + std::to_string(node) +
                                                         " has not come to program " +
                                                         std::to_string(hosts.executions));
    if (tries % 100 == 99)
      if (PJRT_Error* const error = anybody_lost(hosts)) return error;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  std::stringstream read;
  read << std::ifstream(path, std::ios::binary).rdbuf();
  text = read.str();
  return nullptr;
}

PJRT_Error* outputs_of(PJRT_LoadedExecutable* loaded, size_t& outputs) {
  auto executable = arguments<PJRT_LoadedExecutable_GetExecutable_Args>();
  executable.loaded_executable = loaded;
  if (PJRT_Error* const error = inner->PJRT_LoadedExecutable_GetExecutable(&executable))
    return error;
  auto number = arguments<PJRT_Executable_NumOutputs_Args>();
  number.executable = executable.executable;
  PJRT_Error* const error = inner->PJRT_Executable_NumOutputs(&number);
  outputs = number.num_outputs;
  auto destroy = arguments<PJRT_Executable_Destroy_Args>();
  destroy.executable = executable.executable;
  inner->PJRT_Executable_Destroy(&destroy);
  return error;
}

/// A run on all devices of what this process was told of its own.
struct Run {
  PJRT_LoadedExecutable_Execute_Args* args;
  PJRT_Client* client = nullptr;
  Hosts* hosts = nullptr;
  std::vector<PJRT_Device*> devices;
  std::vector<std::vector<PJRT_Buffer*>> inputs, outputs;

  PJRT_Error* send() {
    std::string text;
    size_t list = 0;
    for (PJRT_Device* const device : devices) {
      if (!is_own(device)) continue;
      for (size_t i = 0; i < args->num_args; ++i) {
        Travelling one;
        if (PJRT_Error* const error = read(args->argument_lists[list][i], one)) return error;
        text += text_of(one);
      }
      ++list;
    }
    leave(*hosts, text);
    return nullptr;
  }

  PJRT_Error* receive() {
    inputs.resize(devices.size());
    for (int64_t node = 0; node < hosts->nodes; ++node) {
      std::string text;
      if (node != hosts->node)
        if (PJRT_Error* const error = wait_for(*hosts, node, text)) return error;
      std::string_view left = text;
      size_t list = 0;
      for (size_t place = 0; place < devices.size(); ++place) {
        if (hosts->process_of[seat_of(devices[place]).device] != node) continue;
        for (size_t i = 0; i < args->num_args; ++i) {
          PJRT_Buffer* input = nullptr;
          if (node == hosts->node) {
            input = args->argument_lists[list][i];
          } else if (left.empty()) {
            return fail(PJRT_Error_Code_INTERNAL,
                        "process " + std::to_string(node) + " runs another program");
          } else if (PJRT_Error* const error =
                         write(client, devices[place], next_of(left), input)) {
            return error;
          }
          inputs[place].push_back(input);
        }
        ++list;
      }
      if (!left.empty())
        return fail(PJRT_Error_Code_INTERNAL,
                    "process " + std::to_string(node) + " runs another program");
    }
    return nullptr;
  }

  PJRT_Error* start() {
    size_t count = 0;
    if (PJRT_Error* const error = outputs_of(args->executable, count)) return error;
    std::vector<PJRT_Buffer* const*> input_lists;
    std::vector<PJRT_Buffer**> output_lists;
    outputs.assign(devices.size(), std::vector<PJRT_Buffer*>(count));
    for (size_t place = 0; place < devices.size(); ++place) {
      input_lists.push_back(inputs[place].data());
      output_lists.push_back(outputs[place].data());
    }
    std::vector<PJRT_Event*> done(devices.size());
    PJRT_LoadedExecutable_Execute_Args all = *args;
    all.argument_lists = input_lists.data();
    all.num_devices = devices.size();
    all.output_lists = output_lists.data();
    all.device_complete_events = done.data();
    if (PJRT_Error* const error = inner->PJRT_LoadedExecutable_Execute(&all)) return error;
    size_t list = 0;
    for (size_t place = 0; place < devices.size(); ++place) {
      if (is_own(devices[place])) {
        std::ranges::copy(outputs[place], args->output_lists[list]);
        args->device_complete_events[list++] = done[place];
        continue;
      }
      if (PJRT_Error* const error = finish(done[place])) return error;
      std::ranges::for_each(inputs[place], destroy);
      std::ranges::for_each(outputs[place], destroy);
    }
    return nullptr;
  }
};

PJRT_Client* client_of(const Hosts& hosts) {
  const std::lock_guard lock(lock_of_all());
  for (const auto& [client, seat] : seats<PJRT_Client*>())
    if (seat.hosts == &hosts) return client;
  return nullptr;
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  Run run{.args = args, .devices = {}, .inputs = {}, .outputs = {}};
  if (PJRT_Error* const error = all_devices(args->executable, run.devices)) return error;
  if (std::ranges::all_of(run.devices, is_own)) return inner->PJRT_LoadedExecutable_Execute(args);
  run.hosts = seat_of(run.devices[0]).hosts;
  run.client = client_of(*run.hosts);
  ++run.hosts->executions;
  for (const auto part : {&Run::send, &Run::receive, &Run::start})
    if (PJRT_Error* const error = (run.*part)()) return error;
  return nullptr;
}

const PJRT_Api* load() {
  const char* const path = std::getenv("PLUGIN_OF_HOSTS");
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* const table = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  return table == nullptr ? nullptr : table();
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static PJRT_Api api{};
  if (inner != nullptr) return &api;
  inner = load();
  if (inner == nullptr) return nullptr;
  std::memcpy(&api, inner, std::min(sizeof api, inner->struct_size));
  api.struct_size = std::min(sizeof api, inner->struct_size);
  api.PJRT_Error_Message = error_message;
  api.PJRT_Error_Destroy = destroy_error;
  api.PJRT_Error_GetCode = error_code;
  api.PJRT_Client_Create = create;
  api.PJRT_Client_ProcessIndex = process_index;
  api.PJRT_Client_AddressableDevices = addressable;
  api.PJRT_DeviceDescription_ProcessIndex = device_process;
  api.PJRT_Device_IsAddressable = is_addressable;
  api.PJRT_LoadedExecutable_AddressableDevices = addressable_of;
  api.PJRT_LoadedExecutable_Execute = execute;
  return &api;
}
