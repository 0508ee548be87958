// split and allocate. MPI makes communicators and windows in blocking calls; each is entered only
// once every member has said, within the limit, that it is there.
#include <algorithm>
#include <cstring>
#include <sstream>
#include <tuple>

#include "tutti/base/host.h"
#include "tutti/comm/engine/detail/members.h"
#include "tutti/comm/mpi/mpi_engine.h"

namespace tutti::detail::mpi {
namespace {

constexpr int kExchangeTag = 3;

struct Wish {
  int color = 0;
  int key = 0;
  int rank = 0;
};

std::vector<Wish> wishes_of(const std::vector<std::string>& texts) {
  std::vector<Wish> wishes;
  for (const std::string& text : texts) {
    Wish wish;
    std::istringstream(text) >> wish.color >> wish.key;
    wish.rank = static_cast<int>(wishes.size());
    wishes.push_back(wish);
  }
  return wishes;
}

MPI_Win make_window(MPI_Comm comm, int64_t bytes) {
  const auto lock = enter_mpi();
  MPI_Info info = MPI_INFO_NULL;
  check_mpi(MPI_Info_create(&info), "MPI_Info_create");
  check_mpi(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  void* mine = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  const int code =
      MPI_Win_allocate_shared(bytes, 1, info, comm, static_cast<void*>(&mine), &window);
  MPI_Info_free(&info);
  check_mpi(code, "MPI_Win_allocate_shared");
  return window;
}

// On a line: each part was asked for with room to move it.
void* address_in(MPI_Win window, int rank) {
  const auto lock = enter_mpi();
  MPI_Aint bytes = 0;
  int unit = 0;
  void* start = nullptr;
  check_mpi(MPI_Win_shared_query(window, rank, &bytes, &unit, static_cast<void*>(&start)),
            "MPI_Win_shared_query");
  auto room = static_cast<size_t>(bytes);
  return std::align(kLine, room - kLine, start, room);
}

}  // namespace

GroupComms complete_comms(MPI_Comm collectives) {
  const auto lock = enter_mpi();
  GroupComms comms{.collectives = collectives};
  check_mpi(MPI_Comm_dup(collectives, &comms.messages), "MPI_Comm_dup");
  check_mpi(MPI_Comm_dup(collectives, &comms.control), "MPI_Comm_dup");
  for (MPI_Comm comm : {comms.collectives, comms.messages, comms.control})
    check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comms;
}

std::vector<std::string> MpiEngine::exchange(const char* what, const std::string& mine,
                                             const Deadline& deadline) {
  const std::string place = fmt::format("{}, rank {} of {}", what, rank_, size_);
  throw_if_failed(what);
  try {
    return exchange_texts(
        process_,
        {.comm = comms_.collectives,
         .tag = kExchangeTag,
         .what = place,
         .look = [&](const std::vector<int>& missing) { look_while_exchanging(what, missing); },
         .rank_words = [this](int r) { return rank_words(r); }},
        mine, deadline);
  } catch (const Timeout& error) {
    store_failure(FailureKind::timeout, rank_, error.what());
    throw;
  } catch (const MpiError& error) {
    fail(FailureKind::aborted, error.what(), what);
  }
}

std::shared_ptr<Engine> MpiEngine::split(int color, int key, Millis limit) {
  const Deadline deadline(limit);
  std::vector<Wish> wishes =
      wishes_of(exchange("split", fmt::format("{} {}", color, key), deadline));
  std::erase_if(wishes, [&](const Wish& wish) { return wish.color != color; });
  std::sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) {
    return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
  });
  try {
    MPI_Comm part = MPI_COMM_NULL;
    {
      const auto lock = enter_mpi();
      check_mpi(MPI_Comm_split(comms_.collectives, color < 0 ? MPI_UNDEFINED : color, key, &part),
                "MPI_Comm_split");
    }
    if (color < 0) return nullptr;
    const std::vector<int> all_hosts = hosts_of(shape_);
    std::vector<int> world_ranks;
    std::vector<int> hosts;
    for (const Wish& wish : wishes) {
      world_ranks.push_back(world_ranks_[wish.rank]);
      hosts.push_back(all_hosts[wish.rank]);
    }
    return std::make_shared<MpiEngine>(process_, complete_comms(part), std::move(world_ranks),
                                       shape_of_hosts(hosts), options_);
  } catch (const MpiError& error) {
    fail(FailureKind::aborted, error.what(), "split");
  }
}

SharedParts MpiEngine::allocate(int64_t bytes, Millis limit) {
  for (int r : world_ranks_)
    if (process_.host_of(r) != process_.host_of(process_.rank()))
      throw UsageError(fmt::format(
          "allocate, rank {} of {}: the ranks are on several hosts and share no memory; "
          "use memory of each rank's own",
          rank_, size_));
  const Deadline deadline(limit);
  const auto texts = exchange(
      "allocate", fmt::format("{} {}", bytes, read_host_facts().memory_left_bytes()), deadline);
  SharedParts shared;
  int64_t total = 0;
  int64_t least_left = INT64_MAX;
  for (const std::string& text : texts) {
    int64_t part = 0;
    int64_t left = 0;
    std::istringstream(text) >> part >> left;
    shared.parts.push_back({nullptr, part, DType::uint8});
    total += part == 0 ? 0 : part + 2 * kLine;
    least_left = std::min(least_left, left);
  }
  if (total > least_left)
    throw Error(
        fmt::format("allocate, rank {} of {}: {} wanted for all ranks, {} left\n"
                    "  free memory, raise the cgroup limit, or use fewer ranks or a smaller model",
                    rank_, size_, size_words(total), size_words(least_left)));
  if (total == 0) return shared;
  try {
    const MPI_Win window = make_window(comms_.collectives, bytes == 0 ? 0 : bytes + 2 * kLine);
    for (int r = 0; r < size_; ++r)
      if (shared.parts[r].num_elements > 0) shared.parts[r].data = address_in(window, r);
    // Its owner touches it first, so that pages come from its own memory node.
    if (bytes > 0) std::memset(shared.parts[rank_].data, 0, static_cast<size_t>(bytes));
    // MPI frees a window in a call of all members together, which no destructor can make: the
    // memory stays until the process ends.
    shared.owner = std::make_shared<MPI_Win>(window);
  } catch (const MpiError& error) {
    fail(FailureKind::aborted, error.what(), "allocate");
  }
  // Nobody uses the memory before all have mapped and cleared it.
  run({.collective = Collective::barrier, .limit = limit});
  return shared;
}

}  // namespace tutti::detail::mpi
