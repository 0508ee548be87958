#include "connect.h"

#include "tutti/base/error.h"
#include "tutti/cluster/join/connect.h"
#include "tutti/net/tls.h"

namespace tutti::python {
namespace {

constexpr size_t kIdLetters = 6;

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

Connected connect_over(StoreMeeting& place, const GroupFacts& facts, const Deadline& deadline) {
  if (place.size() == 1) return {};
  const Membership in =
      facts.world != nullptr
          ? Membership{facts.world, facts.world_ranks}
          : make_job(place, facts.world_ranks.empty(), facts.reach, silence_limit(facts.timeout),
                     deadline);
  place.look_for_losses([in] { return in.job->first_loss(in.members); });
  // A group may be made anew under its old name, so each has a token and a listener of its own.
  const Token token = agree_on_token(place, "token", deadline);
  const Credentials credentials{.token = token, .job = "c10d", .tls = tls_from_environment()};
  const ConnectBase base{
      .listener =
          std::make_shared<Listener>(address_to_listen_at(facts.reach, deadline), credentials),
      .token = token,
      // Engines keep this: were the job theirs, its own thread might be the last to drop it.
      .follow =
          [job = std::weak_ptr(in.job), members = in.members](const auto& engine) {
            if (const auto alive = job.lock()) alive->follow(engine, members);
          },
  };
  // The same name may come again while records still know the old group.
  const std::string record_name =
      fmt::format("c10d group {} ({})", facts.name, job_of_token(token).substr(0, kIdLetters));
  Group group = tutti::connect(place, "group", base,
                               {.name = record_name, .by_core = false}, deadline);
  check_order(place, facts.name, group, deadline);
  return {std::move(group), in.job};
}

}  // namespace tutti::python
