#include "tutti/pjrt/c_api/detail/handles.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/clock.h"
#include "tutti/base/error.h"

namespace tutti::pjrt::detail {
namespace {

using Shared = std::shared_ptr<EventState>;

/// What a thread of ours hands to one of the plugin's passes this lock, too: so the thread
/// sanitizer sees it, which sees nothing of the plugin.
std::mutex& handed_over() {
  static std::mutex mutex;
  return mutex;
}

/// Called by one of the plugin's threads, or by watch() itself.
void on_ready(PJRT_Error* error, void* argument) {
  {
    const std::lock_guard lock(handed_over());
  }
  const std::unique_ptr<Shared> shared(static_cast<Shared*>(argument));
  EventState& event = **shared;
  std::string words = error != nullptr ? event.client->api.words_of(error) : std::string();
  const std::lock_guard lock(event.mutex);
  event.failed = error != nullptr;
  event.words = std::move(words);
  event.ready = true;
  event.changed.notify_all();
}

/// Of a destructor: there is nobody whom an error could help.
template <class Args>
void destroy(const Api& api, PJRT_Error* (*PJRT_Api::*function)(Args*), std::string_view name,
             Args& args) noexcept {
  try {
    api.call(function, name, args);
  } catch (const Error&) {
  }
}

}  // namespace

void ClientState::require_all(std::string_view function) const {
  if (!key_values) return;
  try {
    key_values->require_all();
  } catch (const PeerLost& lost) {
    throw PeerLost(fmt::format("{}, {}: {}", api.words(), function, lost.what()));
  }
}

EventState::~EventState() {
  auto args = arguments<PJRT_Event_Destroy_Args>();
  args.event = event;
  destroy(client->api, &PJRT_Api::PJRT_Event_Destroy, "PJRT_Event_Destroy", args);
}

BufferState::~BufferState() {
  auto args = arguments<PJRT_Buffer_Destroy_Args>();
  args.buffer = buffer;
  destroy(client->api, &PJRT_Api::PJRT_Buffer_Destroy, "PJRT_Buffer_Destroy", args);
}

ProgramState::~ProgramState() {
  if (executable == nullptr) return;
  auto args = arguments<PJRT_LoadedExecutable_Destroy_Args>();
  args.executable = executable;
  destroy(client->api, &PJRT_Api::PJRT_LoadedExecutable_Destroy, "PJRT_LoadedExecutable_Destroy",
          args);
}

std::shared_ptr<EventState> watch(const std::shared_ptr<ClientState>& client, PJRT_Event* event) {
  auto state = std::make_shared<EventState>(client, event);
  auto shared = std::make_unique<Shared>(state);
  {
    const std::lock_guard lock(handed_over());
  }
  auto args = arguments<PJRT_Event_OnReady_Args>();
  args.event = event;
  args.callback = on_ready;
  args.user_arg = shared.get();
  client->api.call(&PJRT_Api::PJRT_Event_OnReady, "PJRT_Event_OnReady", args);
  // The callback's: it may have been there already.
  static_cast<void>(shared.release());
  return state;
}

bool await(EventState& event, std::string_view what, const Deadline& deadline) {
  constexpr Millis kLook{100};  // for a process that is lost, to which no event would tell it
  const bool looks = event.client->key_values != nullptr;
  std::unique_lock lock(event.mutex);
  const auto ready_until = [&](TimePoint at) {
    return event.changed.wait_until(lock, at, [&] { return event.ready; });
  };
  while (!ready_until(looks ? std::min(deadline.at(), Clock::now() + kLook) : deadline.at())) {
    lock.unlock();
    event.client->require_all(what);
    if (deadline.passed()) return false;
    lock.lock();
  }
  if (!event.failed) return true;
  lock.unlock();
  event.client->require_all(what);
  event.client->api.fail(what, event.words);
}

}  // namespace tutti::pjrt::detail
