#include "tutti/sync/world.h"

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
  if (!world.in_turn()) return at_once(world.local, "a local replica", fn);
  for (int local = 0; local < world.local; ++local) fn(local);
}

}  // namespace detail
}  // namespace tutti
