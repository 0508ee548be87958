#include "tutti/sync/world.h"

#include <exception>
#include <thread>

namespace tutti::detail {

void for_each_local(const World& world, const std::function<void(int)>& fn) {
  std::vector<std::exception_ptr> errors(world.local);
  const auto guarded = [&](int local) {
    try {
      fn(local);
    } catch (...) {
      errors[local] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int local = 1; local < world.local; ++local) threads.emplace_back(guarded, local);
  guarded(0);
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace tutti::detail
