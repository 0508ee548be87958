#include "tutti/cluster/join/connect.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "tutti/base/detail/check.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/cluster/join/engine_choice.h"
#include "tutti/cluster/join/rank_order.h"
#include "tutti/comm/engine/engine_meeting.h"
#include "tutti/comm/hier/hier.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/comm/solo/solo.h"
#include "tutti/comm/tcp/tcp.h"
#include "tutti/net/host_meeting.h"
#include "tutti/net/mesh.h"

namespace tutti {
namespace {

/// The same ranks in another order.
class OrderedPlace final : public MeetingPlace {
 public:
  OrderedPlace(MeetingPlace& place, std::vector<int> order)
      : place_(place),
        order_(std::move(order)),
        rank_(static_cast<int>(std::find(order_.begin(), order_.end(), place.rank()) -
                               order_.begin())) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return place_.size(); }
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    const Deadline& deadline) override {
    std::vector<std::string> theirs = place_.exchange(key, mine, deadline);
    std::vector<std::string> texts;
    for (int r : order_) texts.push_back(std::move(theirs[static_cast<size_t>(r)]));
    return texts;
  }

 private:
  MeetingPlace& place_;
  const std::vector<int> order_;
  const int rank_;
};

TcpLinks links_of(MeetingPlace& place, Listener& listener, const std::string& key, int streams,
                  const Deadline& deadline, int called = -1) {
  const int lanes = tcp_lanes(place.size(), streams);
  Mesh mesh = connect_mesh(place, listener, key, streams, deadline, called, lanes);
  TcpLinks links{.rank = mesh.rank, .size = place.size(), .peers = {}, .lanes = lanes};
  for (MeshPeer& peer : mesh.peers)
    links.peers.push_back({std::move(peer.data), std::move(peer.control)});
  return links;
}

/// Everything that one call of connect() knows.
struct Plan {
  const std::string& key;
  const ConnectBase& base;
  const ConnectOptions& options;
  const Deadline& deadline;
  MeetingPlace& place;        // in the order of the new group's ranks
  HostMeeting& meeting;       // of the ranks before they were put in order
  std::vector<int> order;     // of those ranks
  std::vector<int> per_host;  // in the new order
  int host = 0;
  int local = 0;

  bool in_place_order() const { return std::is_sorted(order.begin(), order.end()); }
  int first_here() const { return std::accumulate(per_host.begin(), per_host.begin() + host, 0); }
  int here() const { return per_host[static_cast<size_t>(host)]; }
};

std::shared_ptr<Engine> connect_engine(MeetingPlace& place, const std::string& key,
                                       const ConnectBase& base, const ConnectOptions& options,
                                       const Deadline& deadline);

std::shared_ptr<Engine> make_inside(const Plan& plan) {
  const ShmOptions options{.pinned = plan.options.pinned,
                           .first_rank = plan.first_here(),
                           .job_ranks = plan.place.size()};
  if (plan.here() > 1 && plan.meeting.leads)
    ShmSegment::create_in(SharedFile::duplicate(plan.meeting.shared.descriptor()), plan.here(),
                          options);
  // Nobody opens a segment before its leader has written it.
  plan.place.exchange("segment/" + plan.key, "", plan.deadline);
  if (plan.here() == 1) return make_solo();
  const auto segment = ShmSegment::open(plan.meeting.shared.descriptor(), options);
  return make_shm(segment, plan.local, false, plan.deadline.left());
}

/// Engines over links need connections for the groups that are split off; their members meet over
/// the group that they are split from.
TcpConnect connector(const std::shared_ptr<std::weak_ptr<Engine>>& engine, const Plan& plan) {
  return [engine, listener = plan.base.listener, streams = plan.options.streams](
             const std::string& key, const std::vector<int>& members, int /*rank*/,
             const Deadline& deadline) {
    EngineMeeting meeting(engine->lock(), members);
    return links_of(meeting, *listener, key, streams, deadline);
  };
}

std::shared_ptr<Engine> make_links_engine(const Plan& plan, MeetingPlace& place,
                                          const std::string& key, ReductionShape shape,
                                          int local_ranks) {
  auto slot = std::make_shared<std::weak_ptr<Engine>>();
  auto engine = make_tcp(links_of(place, *plan.base.listener, key, plan.options.streams,
                                  plan.deadline, plan.place.rank()),
                         {.shape = std::move(shape),
                          .order = plan.options.order,
                          .table = plan.options.table,
                          .key = key,
                          .local_ranks = local_ranks,
                          .connect = connector(slot, plan)});
  *slot = engine;
  return engine;
}

std::shared_ptr<Engine> make_levels(const Plan& plan) {
  HierParts parts{.rank = plan.place.rank(), .replicas_per_host = plan.per_host};
  parts.inside = make_inside(plan);
  parts.across = make_links_engine(plan, plan.place, plan.key + "/across",
                                   ReductionShape::hosts(plan.per_host), plan.here());
  const int slices = *std::max_element(plan.per_host.begin(), plan.per_host.end());
  const auto [mine_first, mine_end] = slices_of(plan.local, plan.here(), slices);
  for (int s = 0; s < slices; ++s) {
    std::vector<int> members;  // who carries slice s, host by host
    int first = 0;
    for (int ranks : plan.per_host) {
      int carrier = 0;
      while (slices_of(carrier, ranks, slices).second <= s) ++carrier;
      members.push_back(first + carrier);
      first += ranks;
    }
    const bool mine = s >= mine_first && s < mine_end;
    if (!mine) {
      parts.rails.push_back(nullptr);
      continue;
    }
    EngineMeeting meeting(parts.across, members);
    parts.rails.push_back(make_links_engine(plan, meeting, fmt::format("{}/rail{}", plan.key, s),
                                            ReductionShape::flat(static_cast<int>(members.size())),
                                            plan.here()));
  }
  const ConnectBase base = plan.base;
  const ConnectOptions options = plan.options;
  parts.regroup = [across = parts.across, key = plan.key, base, options](
                      const std::string& name, std::span<const int> members, Millis limit) {
    EngineMeeting meeting(across, {members.begin(), members.end()});
    ConnectOptions any = options;
    any.engine = "auto";
    any.mpi_ranks = false;
    any.chosen = nullptr;
    return connect_engine(meeting, key + "/" + name, base, any, Deadline(limit));
  };
  return make_hier(std::move(parts));
}

std::shared_ptr<Engine> make_engine(const Plan& plan, const std::string& engine) {
  if (engine == "solo") return make_solo();
  if (engine == "shm") return make_inside(plan);
  if (engine == "hier") return make_levels(plan);
  if (engine == "nccl")
    return make_nccl(plan.place,
                     {.device = *plan.options.cuda_device, .limit = plan.deadline.left()});
  if (engine == "mpi")
    return make_mpi({.shape = ReductionShape::hosts(plan.per_host),
                     .any_order = plan.options.order == Order::any,
                     .limit = plan.deadline.left()});
  TUTTI_CHECK(engine == "tcp", "engine {}", engine);
  return make_links_engine(plan, plan.place, plan.key, ReductionShape::hosts(plan.per_host),
                           plan.here());
}

/// The ranks of `place` in the order of the group's.
std::vector<int> order_of(MeetingPlace& place, const std::string& key, const HostMeeting& meeting,
                          bool by_core, const Deadline& deadline) {
  const HostFacts& host = host_facts();
  const bool bound = by_core && static_cast<int>(host.cores.size()) < host.present_cores;
  const std::string mine = std::to_string(bound ? host.cores.front() : -1);
  const std::vector<std::string> cores = place.exchange("core/" + key, mine, deadline);
  std::vector<RosterEntry> roster;
  for (int r = 0; r < place.size(); ++r)
    roster.push_back({.host = std::to_string(meeting.host_of_rank[static_cast<size_t>(r)]),
                      .core = std::atoi(cores[static_cast<size_t>(r)].c_str()),
                      .worker = r});
  return rank_order(roster);
}

/// Whether the ranks are those of the MPI library in this build, which may be another one than the
/// launcher's. Asked where the answer matters alone: it starts MPI.
bool mpi_can_serve(const Plan& plan) {
  const auto& options = plan.options;
  if (!options.mpi_ranks || !mpi_available() || !plan.in_place_order()) return false;
  if (options.engine != "mpi" && (options.engine != "auto" || plan.per_host.size() < 2))
    return false;
  const auto world = make_mpi_meeting_place(plan.deadline.left());
  const bool same = world->rank() == plan.place.rank() && world->size() == plan.place.size();
  const auto all = plan.place.exchange("mpi/" + plan.key, same ? "1" : "0", plan.deadline);
  return std::all_of(all.begin(), all.end(), [](const auto& text) { return text == "1"; });
}

std::shared_ptr<Engine> connect_engine(MeetingPlace& place, const std::string& key,
                                       const ConnectBase& base, const ConnectOptions& options,
                                       const Deadline& deadline) {
  HostMeeting meeting = meet_on_host(place, key, base.token, deadline);
  const auto host_of = [&](int r) { return meeting.host_of_rank[static_cast<size_t>(r)]; };
  const std::vector<int> order = order_of(place, key, meeting, options.by_core, deadline);
  OrderedPlace ordered(place, order);
  Plan plan{key, base, options, deadline, ordered, meeting, order, {}, host_of(place.rank()), 0};
  for (int r : order) {
    plan.per_host.resize(
        std::max<size_t>(plan.per_host.size(), static_cast<size_t>(host_of(r)) + 1));
    ++plan.per_host[static_cast<size_t>(host_of(r))];
  }
  plan.local = ordered.rank() - plan.first_here();

  const EngineChoice choice = choose_engine({.asked = options.engine,
                                             .replicas_per_host = plan.per_host,
                                             .mpi_built = mpi_available(),
                                             .mpi_launcher = mpi_can_serve(plan),
                                             .nccl_built = nccl_available(),
                                             .on_device = options.cuda_device.has_value()});
  auto engine = make_engine(plan, choice.engine);
  if (options.chosen != nullptr) *options.chosen = choice;
  if (ordered.rank() == 0)
    log(LogLevel::info, "group {}: engine {}, since {}; sums in the order {}", key, choice.engine,
        choice.reason, engine->reduction_shape().to_string());
  if (base.follow) base.follow(engine);
  return engine;
}

}  // namespace

Group connect(MeetingPlace& place, const std::string& key, const ConnectBase& base,
              const ConnectOptions& options, const Deadline& deadline) {
  return Group(connect_engine(place, key, base, options, deadline),
               options.name.empty() ? key : options.name);
}

}  // namespace tutti
