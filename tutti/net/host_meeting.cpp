#include "tutti/net/host_meeting.h"

#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/net/descriptor_giver.h"

namespace tutti {

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

namespace {

/// The name of a rank's socket, and its machine.
std::pair<std::string, std::string> parse_told(const std::string& text, int rank) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) {
    throw Mismatch(
        fmt::format("what rank {} told of its host is no socket's name\n  all ranks need "
                    "the same build of tutti",
                    rank));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

/// Numbers hosts, and checks that every leader leads itself.
HostMeeting sort_out(const std::vector<std::string>& leaders, int rank) {
  HostMeeting meeting;
  std::map<int, int> host_of_leader;
  const int size = static_cast<int>(leaders.size());
  const auto leader_of = [&](int of) {
    const int leader = number_in<int>(leaders[static_cast<size_t>(of)]).value_or(-1);
    if (leader < 0 || leader > of) throw Mismatch(fmt::format("rank {} told no leader", of));
    return leader;
  };
  for (int other = 0; other < size; ++other) {
    const int leader = leader_of(other);
    if (leader_of(leader) != leader) {
      throw Error(
          fmt::format("rank {} reaches rank {} on its host, which reaches rank {}, but the "
                      "first does not reach the last\n  put them into one network namespace, "
                      "or each into its own",
                      other, leader, leader_of(leader)));
    }
    const int next = static_cast<int>(host_of_leader.size());
    meeting.host_of_rank.push_back(host_of_leader.try_emplace(leader, next).first->second);
  }
  for (int other = 0; other < size; ++other) {
    if (meeting.host_of_rank[static_cast<size_t>(other)] ==
        meeting.host_of_rank[static_cast<size_t>(rank)]) {
      meeting.ranks_here.push_back(other);
    }
  }
  meeting.leads = meeting.ranks_here.front() == rank;
  return meeting;
}

}  // namespace

HostMeeting meet_on_host(MeetingPlace& place, const std::string& key, const Token& token,
                         const Deadline& deadline) {
  const int rank = place.rank();
  const std::string machine = boot_id();  // spares tries that must fail
  SharedFile own = SharedFile::create("tutti host");
  std::optional<SharedFile> given;
  HostMeeting meeting;
  {
    const DescriptorGiver giver(token, key, own.descriptor());
    const auto told =
        place.exchange("host/" + key + "/socket", giver.name() + " " + machine, deadline);
    int leader = rank;
    for (int lower = 0; lower < rank && !given; ++lower) {
      const auto [socket_name, its_machine] = parse_told(told[static_cast<size_t>(lower)], lower);
      if (its_machine != machine) continue;
      const std::string who = fmt::format("rank {} (on this host)", lower);
      const auto taken = take_descriptor({socket_name, key, who, rank}, token, deadline);
      if (!taken) continue;
      given = SharedFile::duplicate(taken->get());
      leader = lower;
    }
    // Once everybody has told its leader, nobody asks any more.
    const auto leaders =
        place.exchange("host/" + key + "/leader", std::to_string(leader), deadline);
    meeting = sort_out(leaders, rank);
  }
  meeting.shared = given ? std::move(*given) : std::move(own);
  return meeting;
}

}  // namespace tutti
