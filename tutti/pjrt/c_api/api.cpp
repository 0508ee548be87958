#include "tutti/pjrt/c_api/detail/api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::pjrt::detail {
namespace {

const PJRT_Api* load_table(const std::string& path) {
  // For good: plugins keep threads of their own.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const said = dlerror();
    throw UsageError(fmt::format("plugin {} cannot be loaded: {}", path,
                                 said != nullptr ? said : "the loader does not say why"));
  }
  auto* const get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  const PJRT_Api* const table = get != nullptr ? get() : nullptr;
  if (table == nullptr || table->struct_size < offsetof(PJRT_Api, PJRT_Error_Destroy))
    throw UsageError(fmt::format(
        "{} is no PJRT plugin: {}", path,
        get == nullptr ? "it has no function GetPjrtApi" : "its GetPjrtApi() gives no table"));
  return table;
}

std::string_view view(const char* text, size_t size) {
  return text != nullptr ? std::string_view(text, size) : std::string_view();
}

PJRT_NamedValue named_value(const std::string& name, const Options::mapped_type& value) {
  auto named = arguments<PJRT_NamedValue>();
  named.name = name.data();
  named.name_size = name.size();
  named.value_size = 1;
  if (const auto* number = std::get_if<int64_t>(&value)) {
    named.type = PJRT_NamedValue_kInt64;
    named.int64_value = *number;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    named.type = PJRT_NamedValue_kString;
    named.string_value = text->data();
    named.value_size = text->size();
  } else {
    named.type = PJRT_NamedValue_kBool;
    named.bool_value = std::get<bool>(value);
  }
  return named;
}

DeviceFacts device_facts(const Api& api, PJRT_Device* device) {
  auto described = arguments<PJRT_Device_GetDescription_Args>();
  described.device = device;
  api.call(&PJRT_Api::PJRT_Device_GetDescription, "PJRT_Device_GetDescription", described);
  auto* const description = described.device_description;

  auto id = arguments<PJRT_DeviceDescription_Id_Args>();
  id.device_description = description;
  api.call(&PJRT_Api::PJRT_DeviceDescription_Id, "PJRT_DeviceDescription_Id", id);
  auto process = arguments<PJRT_DeviceDescription_ProcessIndex_Args>();
  process.device_description = description;
  api.call(&PJRT_Api::PJRT_DeviceDescription_ProcessIndex, "PJRT_DeviceDescription_ProcessIndex",
           process);
  auto kind = arguments<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = description;
  api.call(&PJRT_Api::PJRT_DeviceDescription_Kind, "PJRT_DeviceDescription_Kind", kind);
  auto words = arguments<PJRT_DeviceDescription_ToString_Args>();
  words.device_description = description;
  api.call(&PJRT_Api::PJRT_DeviceDescription_ToString, "PJRT_DeviceDescription_ToString", words);
  return {.id = id.id,
          .process = process.process_index,
          .kind = std::string(view(kind.device_kind, kind.device_kind_size)),
          .words = std::string(view(words.to_string, words.to_string_size))};
}

}  // namespace

Api::Api(std::string path) : path_(std::move(path)), table_(load_table(path_)) {
  if (major() != 0 || minor() < kOldestApi)
    throw UsageError(fmt::format(
        "plugin {} is of version {}.{} of PJRT's interface; this tutti speaks 0.{} and newer of 0",
        path_, major(), minor(), kOldestApi));
}

std::string Api::words_of(PJRT_Error* error) const {
  auto message = arguments<PJRT_Error_Message_Args>();
  message.error = error;
  table_->PJRT_Error_Message(&message);
  std::string words(view(message.message, message.message_size));
  auto destroy = arguments<PJRT_Error_Destroy_Args>();
  destroy.error = error;
  table_->PJRT_Error_Destroy(&destroy);
  return words;
}

std::string Api::words() const {
  return fmt::format("PJRT plugin {} (API {}.{})", std::filesystem::path(path_).filename().string(),
                     major(), minor());
}

void Api::fail(std::string_view function, std::string_view said) const {
  throw Error(fmt::format("{}, {}: {}", words(), function, said));
}

void Api::require(size_t field, std::string_view name) const {
  void* function = nullptr;
  if (field + sizeof(function) <= table_->struct_size)
    function = *reinterpret_cast<void* const*>(reinterpret_cast<const char*>(table_) + field);
  if (function == nullptr) fail(name, "it has no such function");
}

void initialize(const Api& api) {
  auto args = arguments<PJRT_Plugin_Initialize_Args>();
  api.call(&PJRT_Api::PJRT_Plugin_Initialize, "PJRT_Plugin_Initialize", args);
}

PJRT_Client* make_client(const Api& api, const Options& options, KeyValues* key_values) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(options.size());
  for (const auto& [name, value] : options) values.push_back(named_value(name, value));
  auto create = arguments<PJRT_Client_Create_Args>();
  create.create_options = values.data();
  create.num_options = values.size();
  if (key_values != nullptr) set_key_values(create, *key_values);
  api.call(&PJRT_Api::PJRT_Client_Create, "PJRT_Client_Create", create);
  return create.client;
}

PluginFacts facts_of(const Api& api, PJRT_Client* client) {
  PluginFacts facts;
  facts.path = api.path();
  facts.api_major = api.major();
  facts.api_minor = api.minor();
  auto name = arguments<PJRT_Client_PlatformName_Args>();
  name.client = client;
  api.call(&PJRT_Api::PJRT_Client_PlatformName, "PJRT_Client_PlatformName", name);
  facts.platform = view(name.platform_name, name.platform_name_size);
  auto version = arguments<PJRT_Client_PlatformVersion_Args>();
  version.client = client;
  api.call(&PJRT_Api::PJRT_Client_PlatformVersion, "PJRT_Client_PlatformVersion", version);
  facts.platform_version = view(version.platform_version, version.platform_version_size);
  auto devices = arguments<PJRT_Client_AddressableDevices_Args>();
  devices.client = client;
  api.call(&PJRT_Api::PJRT_Client_AddressableDevices, "PJRT_Client_AddressableDevices", devices);
  for (size_t i = 0; i < devices.num_addressable_devices; ++i)
    facts.devices.push_back(device_facts(api, devices.addressable_devices[i]));
  return facts;
}

std::vector<DeviceFacts> all_devices_of(const Api& api, PJRT_Client* client) {
  auto devices = arguments<PJRT_Client_Devices_Args>();
  devices.client = client;
  api.call(&PJRT_Api::PJRT_Client_Devices, "PJRT_Client_Devices", devices);
  std::vector<DeviceFacts> all;
  for (size_t i = 0; i < devices.num_devices; ++i)
    all.push_back(device_facts(api, devices.devices[i]));
  return all;
}

}  // namespace tutti::pjrt::detail
