#include "tutti/sync/world.h"

#include <exception>
#include <thread>

namespace tutti {

void World::abort(int local_rank, const std::string& reason) noexcept {
  const auto number = static_cast<size_t>(local_rank);
  groups[number].abort(reason);
  if (!device_groups.empty()) device_groups[number].abort(reason);
  if (mesh_groups.empty()) return;
  MeshGroups& own = mesh_groups[number];
  for (Group* const group : {&own.data, &own.stage, &own.tensor}) group->abort(reason);
}

namespace detail {

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

}  // namespace detail
}  // namespace tutti
