// A PJRT plugin of two devices that fails as FAKE_PLUGIN says: "hang" and "crash" when its client
// is made, "exit" in its initialization, "refuse" to make a client, "old", "other" and "short" in
// its table, "stuck" where device 1 never ends a program, "deaf" where one never begins. Its
// programs give back their arguments.
// Told node_id of num_nodes it puts a value, and gets those of all others within kv_timeout_ms.
#include <pjrt_c_api.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

struct PJRT_Error {
  std::string words;
};
struct PJRT_Event {
  bool ready = true;
};
struct PJRT_Buffer {
  std::string bytes;
  PJRT_Buffer_Type type;
  std::vector<int64_t> dims;
};
struct PJRT_DeviceDescription {
  int id;
};
struct PJRT_Device {
  PJRT_DeviceDescription description;
};
struct PJRT_Client {
  PJRT_Device devices[2] = {{{0}}, {{1}}};
  PJRT_Device* addresses[2] = {&devices[0], &devices[1]};
  std::string version = "v \"1\"";  // with what the others have put
};
struct PJRT_Executable {
  size_t outputs = 1;
};
struct PJRT_LoadedExecutable {
  PJRT_Executable executable;
  PJRT_Device* devices[2];
};

namespace {

bool fails_by(std::string_view how) {
  const char* const told = std::getenv("FAKE_PLUGIN");
  return told != nullptr && told == how;
}

// What a plugin gives out is freed by functions of its own.
template <class T>
T* give(T value) {
  return std::make_unique<T>(std::move(value)).release();
}

PJRT_Error* initialize(PJRT_Plugin_Initialize_Args*) {
  if (fails_by("exit")) {
    std::fputs("some talk\nno TPU was found\n", stderr);
    std::_Exit(3);
  }
  return nullptr;
}

int64_t number_in(const PJRT_Client_Create_Args& args, std::string_view name, int64_t otherwise) {
  for (size_t i = 0; i < args.num_options; ++i)
    if (std::string_view(args.create_options[i].name, args.create_options[i].name_size) == name)
      return args.create_options[i].int64_value;
  return otherwise;
}

PJRT_Error* made_by_callback(PJRT_Error_Code code, const char* words, size_t size) {
  return give(PJRT_Error{"code " + std::to_string(code) + ": " + std::string(words, size)});
}
PJRT_CallbackError make_error = made_by_callback;

std::string key_of(int64_t node) { return "node " + std::to_string(node); }

// With a zero, bytes that are no UTF-8, and two megabytes more.
std::string value_of(int64_t node) {
  return std::to_string(node) + std::string("\0\xff\xfe", 3) + std::string(2 << 20, 'x');
}

PJRT_Error* put(const PJRT_Client_Create_Args& create, const std::string& key,
                const std::string& value) {
  PJRT_KeyValuePutCallback_Args args{};
  args.struct_size = sizeof args;
  args.key = key.data();
  args.key_size = key.size();
  args.value = value.data();
  args.value_size = value.size();
  args.callback_error = &make_error;
  args.user_arg = create.kv_put_user_arg;
  return create.kv_put_callback(&args);
}

template <class Args>
PJRT_Error* got(PJRT_Error* (*callback)(Args*), void* user, const std::string& key,
                int64_t timeout_ms, std::string& value) {
  Args args{};
  args.struct_size = sizeof args;
  args.key = key.data();
  args.key_size = key.size();
  args.callback_error = &make_error;
  args.user_arg = user;
  if constexpr (requires { args.timeout_in_ms; }) args.timeout_in_ms = static_cast<int>(timeout_ms);
  if (PJRT_Error* const error = callback(&args)) return error;
  value.assign(args.value, args.value_size);
  args.value_deleter_callback(args.value);
  return nullptr;
}

PJRT_Error* meet(const PJRT_Client_Create_Args& create, PJRT_Client& client) {
  const int64_t nodes = number_in(create, "num_nodes", 1), own = number_in(create, "node_id", 0);
  const int64_t timeout = number_in(create, "kv_timeout_ms", 20'000);
  if (nodes == 1) return nullptr;
  if (create.kv_get_callback == nullptr) return give(PJRT_Error{"no key-value store was given"});
  std::string value;
  const auto now = [&](const std::string& key) {
    return std::unique_ptr<PJRT_Error>(
        got(create.kv_try_get_callback, create.kv_try_get_user_arg, key, timeout, value));
  };
  const auto missing = now("nobody's");
  if (!missing) return give(PJRT_Error{"a value that nobody has put"});
  if (!missing->words.starts_with("code 5:")) return give(PJRT_Error{*missing});
  if (PJRT_Error* const error = put(create, key_of(own), value_of(own))) return error;
  if (now(key_of(own)) || value != value_of(own)) return give(PJRT_Error{"its own is not there"});
  for (int64_t node = 0; node < nodes; ++node) {
    client.version += " " + std::to_string(node);
    if (node == own) continue;
    if (PJRT_Error* const error =
            got(create.kv_get_callback, create.kv_get_user_arg, key_of(node), timeout, value))
      return error;
    if (value != value_of(node)) return give(PJRT_Error{"the value of another"});
  }
  return nullptr;
}

PJRT_Error* create(PJRT_Client_Create_Args* args) {
  if (fails_by("hang")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (fails_by("crash")) std::abort();
  if (fails_by("fork") && ::fork() == 0) ::sleep(3600);
  if (fails_by("refuse")) return give(PJRT_Error{"the devices are\nin use by another process"});
  // For good: clients are never destroyed.
  static auto* const clients = give(std::vector<PJRT_Client*>{});
  static std::mutex mutex;
  PJRT_Client* const client = std::make_unique<PJRT_Client>().release();
  {
    const std::lock_guard lock(mutex);
    clients->push_back(client);
  }
  args->client = client;
  return meet(*args, *client);
}

PJRT_Error* platform_name(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = "fake";
  args->platform_name_size = 4;
  return nullptr;
}

PJRT_Error* platform_version(PJRT_Client_PlatformVersion_Args* args) {
  args->platform_version = args->client->version.data();
  args->platform_version_size = args->client->version.size();
  return nullptr;
}

PJRT_Error* addressable(PJRT_Client_AddressableDevices_Args* args) {
  args->addressable_devices = args->client->addresses;
  args->num_addressable_devices = 2;
  return nullptr;
}

PJRT_Error* devices(PJRT_Client_Devices_Args* args) {
  args->devices = args->client->addresses;
  args->num_devices = 2;
  return nullptr;
}

PJRT_Error* process_index(PJRT_Client_ProcessIndex_Args* args) {
  args->process_index = 0;
  return nullptr;
}

PJRT_Error* description(PJRT_Device_GetDescription_Args* args) {
  args->device_description = &args->device->description;
  return nullptr;
}

PJRT_Error* device_id(PJRT_DeviceDescription_Id_Args* args) {
  args->id = args->device_description->id;
  return nullptr;
}

PJRT_Error* device_process(PJRT_DeviceDescription_ProcessIndex_Args* args) {
  args->process_index = 0;
  return nullptr;
}

PJRT_Error* device_kind(PJRT_DeviceDescription_Kind_Args* args) {
  args->device_kind = "made up";
  args->device_kind_size = 7;
  return nullptr;
}

PJRT_Error* device_words(PJRT_DeviceDescription_ToString_Args* args) {
  args->to_string = args->device_description->id == 0 ? "FAKE_0" : "FAKE_1";
  args->to_string_size = 6;
  return nullptr;
}

PJRT_Error* to_device(PJRT_Client_BufferFromHostBuffer_Args* args) {
  size_t bytes = 4;  // of float32 alone
  for (size_t i = 0; i < args->num_dims; ++i) bytes *= static_cast<size_t>(args->dims[i]);
  args->buffer = give(PJRT_Buffer{.bytes = {static_cast<const char*>(args->data), bytes},
                                  .type = args->type,
                                  .dims = {args->dims, args->dims + args->num_dims}});
  args->done_with_host_buffer = give(PJRT_Event{});
  return nullptr;
}

PJRT_Error* to_host(PJRT_Buffer_ToHostBuffer_Args* args) {
  std::memcpy(args->dst, args->src->bytes.data(), args->src->bytes.size());
  args->event = give(PJRT_Event{});
  return nullptr;
}

PJRT_Error* element_type(PJRT_Buffer_ElementType_Args* args) {
  args->type = args->buffer->type;
  return nullptr;
}

PJRT_Error* dimensions(PJRT_Buffer_Dimensions_Args* args) {
  args->dims = args->buffer->dims.data();
  args->num_dims = args->buffer->dims.size();
  return nullptr;
}

PJRT_Error* destroy_buffer(PJRT_Buffer_Destroy_Args* args) {
  std::unique_ptr<PJRT_Buffer>(args->buffer).reset();
  return nullptr;
}

PJRT_Error* addressable_of(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = args->executable->devices;
  args->num_addressable_devices = 2;
  return nullptr;
}

PJRT_Error* compile(PJRT_Client_Compile_Args* args) {
  if (fails_by("compile")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (std::string_view(args->program->code, args->program->code_size) != "echo")
    return give(PJRT_Error{"line 1: what is that?"});
  // In an order of its own.
  args->executable =
      give(PJRT_LoadedExecutable{{}, {args->client->addresses[1], args->client->addresses[0]}});
  return nullptr;
}

PJRT_Error* executable_of(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = give(PJRT_Executable{args->loaded_executable->executable});
  return nullptr;
}

PJRT_Error* num_outputs(PJRT_Executable_NumOutputs_Args* args) {
  args->num_outputs = args->executable->outputs;
  return nullptr;
}

PJRT_Error* destroy_executable(PJRT_Executable_Destroy_Args* args) {
  std::unique_ptr<PJRT_Executable>(args->executable).reset();
  return nullptr;
}

PJRT_Error* destroy_loaded(PJRT_LoadedExecutable_Destroy_Args* args) {
  std::unique_ptr<PJRT_LoadedExecutable>(args->executable).reset();
  return nullptr;
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (fails_by("deaf")) std::this_thread::sleep_for(std::chrono::hours(1));
  for (size_t device = 0; device < args->num_devices; ++device) {
    args->output_lists[device][0] = give(PJRT_Buffer(*args->argument_lists[device][0]));
    // The second list is device 0's.
    args->device_complete_events[device] = give(PJRT_Event{device == 1 || !fails_by("stuck")});
  }
  return nullptr;
}

PJRT_Error* on_ready(PJRT_Event_OnReady_Args* args) {
  static auto* const waiting = give(std::vector<PJRT_Event_OnReady_Args>{});
  if (args->event->ready)
    args->callback(nullptr, args->user_arg);
  else
    waiting->push_back(*args);
  return nullptr;
}

PJRT_Error* destroy_event(PJRT_Event_Destroy_Args* args) {
  std::unique_ptr<PJRT_Event>(args->event).reset();
  return nullptr;
}

void error_message(PJRT_Error_Message_Args* args) {
  args->message = args->error->words.data();
  args->message_size = args->error->words.size();
}

void destroy_error(PJRT_Error_Destroy_Args* args) {
  std::unique_ptr<PJRT_Error>(args->error).reset();
}

PJRT_Api table() {
  PJRT_Api api{};
  api.struct_size = fails_by("short") ? 8 : sizeof api;
  api.pjrt_api_version.major_version = fails_by("other") ? 1 : 0;
  api.pjrt_api_version.minor_version = fails_by("old") ? 12 : PJRT_API_MINOR;
  api.PJRT_Error_Message = error_message;
  api.PJRT_Error_Destroy = destroy_error;
  api.PJRT_Plugin_Initialize = initialize;
  api.PJRT_Client_Create = create;
  api.PJRT_Client_PlatformName = platform_name;
  api.PJRT_Client_PlatformVersion = platform_version;
  api.PJRT_Client_Devices = devices;
  api.PJRT_Client_ProcessIndex = process_index;
  api.PJRT_Client_AddressableDevices = addressable;
  api.PJRT_Device_GetDescription = description;
  api.PJRT_DeviceDescription_Id = device_id;
  api.PJRT_DeviceDescription_ProcessIndex = device_process;
  api.PJRT_DeviceDescription_Kind = device_kind;
  api.PJRT_DeviceDescription_ToString = device_words;
  api.PJRT_Client_BufferFromHostBuffer = to_device;
  api.PJRT_Buffer_ToHostBuffer = to_host;
  api.PJRT_Buffer_ElementType = element_type;
  api.PJRT_Buffer_Dimensions = dimensions;
  api.PJRT_Buffer_Destroy = destroy_buffer;
  api.PJRT_Client_Compile = compile;
  api.PJRT_LoadedExecutable_GetExecutable = executable_of;
  api.PJRT_Executable_NumOutputs = num_outputs;
  api.PJRT_Executable_Destroy = destroy_executable;
  api.PJRT_LoadedExecutable_Destroy = destroy_loaded;
  api.PJRT_LoadedExecutable_AddressableDevices = addressable_of;
  api.PJRT_LoadedExecutable_Execute = execute;
  api.PJRT_Event_OnReady = on_ready;
  api.PJRT_Event_Destroy = destroy_event;
  return api;
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static PJRT_Api api;
  api = table();
  return &api;
}
