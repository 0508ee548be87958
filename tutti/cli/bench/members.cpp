// Who takes part in a measurement: threads, processes of a launcher, processes of mpirun.
#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/threads.h"
#include "tutti/cli/bench/all_reduce.h"
#include "tutti/cluster/join/connect.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/engine/engine_meeting.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/comm/tcp/tcp.h"

namespace tutti::cli {
namespace {

constexpr Millis kConnectLimit{60'000};

bool has_cores(int ranks, const AllReduceBench& bench) {
  return bench.pin && ranks <= host_facts().usable_cores;
}

// Collective: one secret for connections inside this machine, that nobody else knows.
Credentials shared_secret(MeetingPlace& place, const Deadline& deadline) {
  const std::string mine = place.rank() == 0 ? Token::random().secret_hex() : "";
  return {.token = Token::parse(place.exchange("secret", mine, deadline)[0], "the benchmark"),
          .job = "bench"};
}

std::shared_ptr<Listener> listen_on_loopback(const Credentials& credentials) {
  return std::make_shared<Listener>(Address::from_number("127.0.0.1", 0).value(), credentials);
}

TcpLinks links_of(Mesh mesh) {
  TcpLinks links{.rank = mesh.rank, .size = static_cast<int>(mesh.peers.size())};
  for (MeshPeer& peer : mesh.peers)
    links.peers.push_back({std::move(peer.data), std::move(peer.control)});
  return links;
}

BenchMember make_tcp_member(const Group& side, const AllReduceBench& bench) {
  const Deadline deadline(kConnectLimit);
  const auto keep = std::make_shared<Group>(side);
  std::vector<int> ranks;
  for (int r = 0; r < side.size(); ++r) ranks.push_back(r);
  EngineMeeting place(std::shared_ptr<Engine>(keep, &keep->engine()), ranks);
  const auto listener = listen_on_loopback(shared_secret(place, deadline));
  Mesh mesh = connect_mesh(place, *listener, "bench", bench.streams, deadline);
  BenchMember member{.side = side};
  member.measured = Group(make_tcp(
      links_of(std::move(mesh)),
      {.order = bench.order, .table = bench.table, .key = "bench", .local_ranks = side.size()}));
  member.wires = connect_mesh(place, *listener, "floor", 1, deadline);
  return member;
}

bool spans_hosts() {
  const auto environment = worker_environment();
  return !environment || environment->segment_fd < 0;
}

}  // namespace

BenchMember make_bench_member(const Group& side, const AllReduceBench& bench) {
  if (bench.engine == "tcp" && side.size() > 1) return make_tcp_member(side, bench);
  return {.measured = side, .side = side};
}

void on_threads(int ranks, const AllReduceBench& bench,
                const std::function<void(BenchMember)>& body) {
  const bool pinned = has_cores(ranks, bench);
  std::vector<Group> sides(1);
  if (ranks > 1) {
    sides.clear();
    for (auto& engine : make_shm_threads(ranks, {.pinned = pinned})) sides.emplace_back(engine);
  }
  std::mutex mutex;
  std::exception_ptr first;  // the others' errors follow from it
  const auto be = [&](size_t r) {
    try {
      BenchMember member = make_bench_member(sides[r], bench);
      member.members = "threads";
      member.pin = pinned;
      body(std::move(member));
    } catch (const std::exception& error) {
      {
        const std::scoped_lock lock(mutex);
        if (!first) first = std::current_exception();
      }
      sides[r].abort(error.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (size_t r = 0; r < sides.size(); ++r)
        threads.push_back(start_thread<std::jthread>("a rank", [&be, r] { be(r); }));
    } catch (const Error& error) {
      for (Group& side : sides) side.abort(error.what());
      throw;
    }
  }
  if (first) std::rethrow_exception(first);
}

std::vector<AllReduceRow> measure_threads(int ranks, const AllReduceBench& bench) {
  std::vector<AllReduceRow> rows;
  on_threads(ranks, bench, [&](BenchMember member) {
    const bool first = member.measured.rank() == 0;
    auto mine = measure(std::move(member), bench);
    if (first) rows = std::move(mine);
  });
  return rows;
}

std::vector<AllReduceRow> measure_as_worker(const AllReduceBench& bench, bool& speaks) {
  const Group workers = join();
  speaks = workers.rank() == 0;
  const int ranks = workers.size();
  if (ranks == 1 || !spans_hosts()) {
    const bool pinned = has_cores(ranks, bench);
    BenchMember member = make_bench_member(join_replicas(1, {.pinned = pinned}).front(), bench);
    member.members = "processes";
    member.pin = pinned;
    return measure(std::move(member), bench);
  }
  JoinOptions options{.order = bench.order, .streams = bench.streams, .table = bench.table};
  BenchMember member{.side = workers};
  member.measured = join_replicas(1, options).front();
  options.engine = "tcp";
  member.other = join_replicas(1, options).front();
  member.members = "hosts";
  return measure(std::move(member), bench);
}

std::vector<AllReduceRow> measure_under_mpi(const AllReduceBench& bench, bool& speaks) {
  const Deadline deadline(kConnectLimit);
  BenchMember member;
  member.measured = Group(make_mpi({.any_order = bench.order == Order::any}));
  speaks = member.measured.rank() == 0;
  const auto place = make_mpi_meeting_place();
  const std::string words = process_words();  // "host node7, pid 4711"
  const std::string host = words.substr(0, words.find(','));
  const auto hosts = place->exchange("host", host, deadline);
  if (std::count(hosts.begin(), hosts.end(), hosts[0]) != place->size())
    throw UsageError(fmt::format(
        "bench all-reduce --engine mpi: rank {} is on {} and rank 0 on {}; all ranks have to be on "
        "one host, where there is a floor to compare with",
        place->rank(), host, hosts[0]));
  const Credentials credentials = shared_secret(*place, deadline);
  const bool pinned = has_cores(place->size(), bench);
  member.side = connect(*place, "bench",
                        {.listener = listen_on_loopback(credentials), .token = credentials.token},
                        {.pinned = pinned}, deadline);
  member.members = "processes";
  member.pin = pinned;
  return measure(std::move(member), bench);
}

}  // namespace tutti::cli
