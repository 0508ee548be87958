#include "connect.h"

#include "tutti/base/error.h"
#include "tutti/cluster/connect.h"
#include "tutti/net/tls.h"

namespace tutti::python {
namespace {

// c10d numbers the parts of its results by its own ranks.
void check_order(MeetingPlace& place, const std::string& name, const Group& group,
                 const Deadline& deadline) {
  const auto ranks = place.exchange("order", std::to_string(group.rank()), deadline);
  for (int r = 0; r < place.size(); ++r)
    if (ranks[static_cast<size_t>(r)] != std::to_string(r))
      throw UsageError(fmt::format(
          "group \"{}\", rank {} of {}: ranks of one host are not consecutive (rank {} would be "
          "number {})\n  number the processes host by host, as torchrun does",
          name, place.rank(), place.size(), r, ranks[static_cast<size_t>(r)]));
}

}  // namespace

Connected connect_over(MeetingPlace& place, const GroupFacts& facts, const Deadline& deadline) {
  if (place.size() == 1) return {};
  const Membership in = membership(place, facts.world_ranks, facts.reach,
                                   silence_limit(facts.timeout), deadline);
  // A group may be made anew under its old name, so each has a token and a listener of its own.
  const Token token = agree_on_token(place, "token", deadline);
  const Credentials credentials{.token = token, .job = "c10d", .tls = tls_from_environment()};
  const ConnectBase base{
      .listener =
          std::make_shared<Listener>(address_to_listen_at(facts.reach, deadline), credentials),
      .token = token,
      .follow = [in](const auto& engine) { in.job->follow(engine, in.members); },
  };
  Group group = tutti::connect(place, "group", base,
                               {.name = "c10d group " + facts.name, .by_core = false}, deadline);
  check_order(place, facts.name, group, deadline);
  return {std::move(group), in.job};
}

}  // namespace tutti::python
