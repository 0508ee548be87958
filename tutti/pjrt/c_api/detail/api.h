/// A loaded plugin's table of functions, and calls of them that throw.
/// Thread rule: any thread.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/net/key_values.h"
#include "tutti/pjrt/plugin.h"

namespace tutti::pjrt::detail {

/// Arguments of a call, zeroed, with the size that the plugin knows them by.
template <class Args>
Args arguments() {
  Args made{};
  made.struct_size = sizeof(Args);
  return made;
}

class Api {
 public:
  /// Loads the library and checks its version; nothing else of it has run. UsageError as
  /// probe_plugin() says.
  explicit Api(std::string path);

  /// Calls a function of the table. Error with plugin, version, function and what it said.
  template <class Args>
  void call(PJRT_Error* (*PJRT_Api::*function)(Args*), std::string_view name, Args& args) const {
    require(field(function), name);
    if (PJRT_Error* const error = (table_->*function)(&args)) fail(name, words_of(error));
  }

  /// What an error says; frees it.
  std::string words_of(PJRT_Error* error) const;

  /// "PJRT plugin xla_cpu_pjrt.so (API 0.81)".
  std::string words() const;
  [[noreturn]] void fail(std::string_view function, std::string_view said) const;

  const std::string& path() const { return path_; }
  int major() const { return table_->pjrt_api_version.major_version; }
  int minor() const { return table_->pjrt_api_version.minor_version; }

 private:
  template <class Function>
  size_t field(Function PJRT_Api::* function) const {
    return static_cast<size_t>(reinterpret_cast<const char*>(&(table_->*function)) -
                               reinterpret_cast<const char*>(table_));
  }
  /// An older plugin has a shorter table.
  void require(size_t field, std::string_view name) const;

  std::string path_;
  const PJRT_Api* table_ = nullptr;
};

void initialize(const Api& api);
/// key_values  may be null; asked by the plugin's threads as long as the client is there
PJRT_Client* make_client(const Api& api, const Options& options, KeyValues* key_values);
/// Has the plugin's key-value callbacks ask `key_values`.
void set_key_values(PJRT_Client_Create_Args& args, KeyValues& key_values);
PluginFacts facts_of(const Api& api, PJRT_Client* client);
/// Of all processes that share the client, in the plugin's order.
std::vector<DeviceFacts> all_devices_of(const Api& api, PJRT_Client* client);

/// probe_plugin() without its client: whether it can be loaded and set up.
void probe_loading(const std::string& path, Millis limit);

}  // namespace tutti::pjrt::detail
