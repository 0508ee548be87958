#include "tutti/sync/world.h"

#include "tutti/base/error.h"
#include "tutti/base/threads.h"

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
  const int each = world.local / world.threads();
  at_once(world.threads(), "a local replica", [&](int thread) {
    for (const int local : world.on_thread_of(thread * each)) fn(local);
  });
}

void require_resizable(const World& before, const World& next) {
  if (before.processes() > 1 || next.processes() > 1)
    throw UsageError("a world of several workers cannot be resized while it runs");
}

}  // namespace detail
}  // namespace tutti
