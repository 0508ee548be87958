#include "tutti/comm/group/host_view.h"

#include "tutti/comm/hier/hier.h"

namespace tutti {

HostView host_view(const Group& group) {
  const Engine& engine = group.engine();
  if (engine.shares_memory()) return {.inside = group};
  const HierParts* parts = parts_of(engine);
  if (parts == nullptr) return {.host = group.rank(), .num_hosts = group.size(), .rails = {group}};
  HostView view{.inside = Group(parts->inside),
                .num_hosts = static_cast<int>(parts->replicas_per_host.size()),
                .num_slices = static_cast<int>(parts->rails.size())};
  view.first_slice = slices_of(view.inside.rank(), view.inside.size(), view.num_slices).first;
  for (const auto& rail : parts->rails)
    if (rail != nullptr) view.rails.emplace_back(rail);
  view.host = view.rails.front().rank();
  return view;
}

}  // namespace tutti
