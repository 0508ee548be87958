// The callbacks by which a plugin asks for the values of a job. They are called by its threads, and
// through C: nothing is thrown out of them.
#include "tutti/net/key_values.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/pjrt/c_api/detail/api.h"

namespace tutti::pjrt::detail {
namespace {

PJRT_Error_Code code_of(const std::exception& error) {
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return PJRT_Error_Code_DEADLINE_EXCEEDED;
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return PJRT_Error_Code_UNAVAILABLE;
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return PJRT_Error_Code_INVALID_ARGUMENT;
  return PJRT_Error_Code_INTERNAL;
}

PJRT_Error* error_of(PJRT_CallbackError* make, PJRT_Error_Code code, std::string_view words) {
  return (*make)(code, words.data(), words.size());
}

/// What `action` throws, as the plugin's own error; null where it throws nothing.
template <class Action>
PJRT_Error* without_throwing(PJRT_CallbackError* make, Action action) noexcept {
  try {
    return action();
  } catch (const std::exception& error) {
    return error_of(make, code_of(error), error.what());
  } catch (...) {
    return error_of(make, PJRT_Error_Code_INTERNAL, "no exception of the standard library's");
  }
}

/// A copy for the plugin, which gives it back to be deleted.
template <class Args>
void give(std::string_view value, Args& args) {
  auto copy = std::make_unique<char[]>(std::max<size_t>(value.size(), 1));
  std::ranges::copy(value, copy.get());
  args.value = copy.release();
  args.value_size = value.size();
  args.value_deleter_callback = [](char* given) { std::unique_ptr<char[]>(given).reset(); };
}

std::string_view key_in(const auto& args) { return {args.key, args.key_size}; }

KeyValues& asked(void* user) { return *static_cast<KeyValues*>(user); }

PJRT_Error* put(PJRT_KeyValuePutCallback_Args* args) {
  return without_throwing(args->callback_error, [&]() -> PJRT_Error* {
    asked(args->user_arg).put(key_in(*args), {args->value, args->value_size});
    return nullptr;
  });
}

PJRT_Error* get(PJRT_KeyValueGetCallback_Args* args) {
  return without_throwing(args->callback_error, [&]() -> PJRT_Error* {
    const Deadline deadline(Millis{std::max(args->timeout_in_ms, 0)});
    give(asked(args->user_arg).get(key_in(*args), deadline), *args);
    return nullptr;
  });
}

PJRT_Error* try_get(PJRT_KeyValueTryGetCallback_Args* args) {
  return without_throwing(args->callback_error, [&]() -> PJRT_Error* {
    const auto value = asked(args->user_arg).try_get(key_in(*args));
    if (!value)
      return error_of(args->callback_error, PJRT_Error_Code_NOT_FOUND,
                      fmt::format("nobody has put \"{}\"", key_in(*args)));
    give(*value, *args);
    return nullptr;
  });
}

}  // namespace

void set_key_values(PJRT_Client_Create_Args& args, KeyValues& key_values) {
  args.kv_put_callback = put;
  args.kv_put_user_arg = &key_values;
  args.kv_get_callback = get;
  args.kv_get_user_arg = &key_values;
  args.kv_try_get_callback = try_get;
  args.kv_try_get_user_arg = &key_values;
}

}  // namespace tutti::pjrt::detail
