/// What the handles of client.h hold. Not for users.
/// Thread rule: any thread; what stands under a mutex is locked by it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/pjrt/c_api/detail/api.h"
#include "tutti/pjrt/client.h"

namespace tutti::pjrt::detail {

/// Never destroyed: a plugin's threads, and buffers that others hold, may outlive main().
struct ClientState {
  Api api;
  PJRT_Client* client = nullptr;
  std::vector<PJRT_Device*> devices;  ///< of this process
  PluginFacts facts;
  std::shared_ptr<KeyValues> key_values;  ///< null: none
  int process = 0;
  std::vector<DeviceFacts> all_devices;  ///< by process and id

  /// PeerLost, as `function`'s, where another process that shares it is lost.
  void require_all(std::string_view function) const;
};

/// Something that the plugin is at, waited for with a deadline: PJRT_Event_Await() has none.
struct EventState {
  EventState(std::shared_ptr<ClientState> whose, PJRT_Event* what)
      : client(std::move(whose)), event(what) {}
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;
  ~EventState();

  std::shared_ptr<ClientState> client;
  PJRT_Event* event;
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;   ///< under mutex
  bool failed = false;  ///< under mutex
  std::string words;    ///< under mutex: what failed
  Array keep;           ///< memory that the plugin may still write to
};

/// Takes the event over and has the plugin tell when it is ready.
std::shared_ptr<EventState> watch(const std::shared_ptr<ClientState>& client, PJRT_Event* event);

/// False where the deadline passes first. Error for what failed, with `what`: "device 0, step";
/// PeerLost where another process of the client is lost.
bool await(EventState& event, std::string_view what, const Deadline& deadline);

/// An array on a device, freed with this.
struct BufferState {
  std::shared_ptr<ClientState> client;
  PJRT_Buffer* buffer = nullptr;

  BufferState(std::shared_ptr<ClientState> whose, PJRT_Buffer* what)
      : client(std::move(whose)), buffer(what) {}
  BufferState(const BufferState&) = delete;
  BufferState& operator=(const BufferState&) = delete;
  ~BufferState();
};

/// A program that is loaded on its devices, until this goes.
struct ProgramState {
  std::shared_ptr<ClientState> client;
  PJRT_LoadedExecutable* executable = nullptr;
  int replicas = 1;  ///< here
  int num_outputs = 0;
  std::vector<size_t> devices;  ///< the client's, in the order of its lists of arguments

  ProgramState() = default;
  ProgramState(const ProgramState&) = delete;
  ProgramState& operator=(const ProgramState&) = delete;
  ~ProgramState();
};

PJRT_Buffer_Type type_of(DType dtype);
/// Error that names the function which gave a type that tutti has not.
DType dtype_of(const Api& api, std::string_view function, PJRT_Buffer_Type type);

int outputs_of(const ProgramState& program);

}  // namespace tutti::pjrt::detail
