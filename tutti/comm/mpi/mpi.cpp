#include "tutti/comm/mpi/mpi.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/log.h"
#include "tutti/comm/engine/detail/members.h"
#include "tutti/comm/mpi/mpi_engine.h"

namespace tutti {
namespace {

using detail::mpi::MpiProcess;

std::string library_words() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view all(text);
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

void check_options(const MpiOptions& options, int size) {
  if (options.chunk_bytes < 1 || options.message_bytes < 64 || options.message_bytes > 1 << 30)
    throw UsageError(
        fmt::format("engine \"mpi\": chunks of {} bytes, messages of {}; expected at least 1, and "
                    "64 to {}",
                    options.chunk_bytes, options.message_bytes, 1 << 30));
  if (options.shape && options.shape->replicas() != size)
    throw UsageError(
        fmt::format("engine \"mpi\": shape {} is for {} ranks, the MPI launcher "
                    "started {}",
                    options.shape->to_string(), options.shape->replicas(), size));
}

// Throws PeerLost when one of `missing` has ended.
void look_for_dead(const MpiProcess& process, const std::string& what,
                   const std::vector<int>& missing) {
  for (int r : missing)
    if (process.is_dead(r))
      throw PeerLost(
          fmt::format("{}: rank {} ({}) died before all had come\n"
                      "  look first at its last lines",
                      what, r, process.words(r)));
}

std::vector<std::string> exchange_in_world(MpiProcess& process, int tag, const std::string& what,
                                           const std::string& mine, const Deadline& deadline) {
  const std::string place = fmt::format("{}, rank {} of {}", what, process.rank(), process.size());
  return detail::mpi::exchange_texts(
      process,
      {.comm = process.world(),
       .tag = tag,
       .what = place,
       .look = [&](const std::vector<int>& missing) { look_for_dead(process, place, missing); },
       .rank_words = [&](int r) { return fmt::format("rank {} ({})", r, process.words(r)); }},
      mine, deadline);
}

// Every rank has to make the group with the same options, or they would wait for different pieces.
void agree_on_options(MpiProcess& process, const MpiOptions& options) {
  const std::string mine =
      fmt::format("shape {}, {} order, chunks of {} bytes, messages of {}",
                  options.shape ? options.shape->to_string() : "of the hosts",
                  options.any_order ? "any" : "its", options.chunk_bytes, options.message_bytes);
  const auto all =
      exchange_in_world(process, detail::mpi::kGroupTag, "make_mpi", mine, Deadline(options.limit));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != mine)
      throw Mismatch(
          fmt::format("make_mpi: rank {} asks for {}, rank {} for {}\n"
                      "  every rank has to give the same options",
                      process.rank(), mine, r, all[r]));
}

// Ranks of an MPI launcher, through messages on a tag of their own.
class MpiMeetingPlace final : public MeetingPlace {
 public:
  explicit MpiMeetingPlace(MpiProcess& process) : process_(process) {}

  int rank() const noexcept override { return process_.rank(); }
  int size() const noexcept override { return process_.size(); }

  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    const Deadline& deadline) override {
    const std::string what = fmt::format("meeting through MPI for \"{}\"", key);
    std::string text(key);
    text.push_back('\0');
    text.append(mine);
    auto all = exchange_in_world(process_, detail::mpi::kMeetingTag, what, text, deadline);
    for (size_t r = 0; r < all.size(); ++r) {
      const size_t end = all[r].find('\0');
      if (all[r].compare(0, end, key) != 0)
        throw Mismatch(
            fmt::format("{}, rank {} of {}: rank {} came for \"{}\"\n"
                        "  every rank has to make the same calls in the same order",
                        what, rank(), size(), r, all[r].substr(0, end)));
      all[r].erase(0, end + 1);
    }
    return all;
  }

 private:
  MpiProcess& process_;
};

}  // namespace

bool mpi_available() noexcept { return true; }

std::shared_ptr<Engine> make_mpi(const MpiOptions& options) {
  MpiProcess& process = MpiProcess::start(options.limit);
  check_options(options, process.size());
  agree_on_options(process, options);

  std::vector<int> ranks(static_cast<size_t>(process.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> hosts;
  for (int r : ranks) hosts.push_back(process.host_of(r));
  const ReductionShape shape = options.shape ? *options.shape : detail::shape_of_hosts(hosts);

  MPI_Comm collectives = MPI_COMM_NULL;
  {
    const auto lock = detail::mpi::enter_mpi();
    detail::mpi::check_mpi(MPI_Comm_dup(process.world(), &collectives), "MPI_Comm_dup");
  }
  const int rank = process.rank();
  log(LogLevel::info, "engine mpi: rank {} of {}, {}, {} threads; sums in shape {}{}", rank,
      process.size(), library_words(), process.serialized() ? "one of several" : "any",
      shape.to_string(), options.any_order ? ", where MPI has no sum of its own (order any)" : "");
  return std::make_shared<detail::mpi::MpiEngine>(process, detail::mpi::complete_comms(collectives),
                                                  std::move(ranks), shape, options);
}

std::unique_ptr<MeetingPlace> make_mpi_meeting_place(Millis limit) {
  return std::make_unique<MpiMeetingPlace>(MpiProcess::start(limit));
}

}  // namespace tutti
