#include "connect.h"

#include "tutti/base/error.h"
#include "tutti/cluster/connect.h"
#include "tutti/net/address.h"
#include "tutti/net/connect.h"

namespace tutti::python {
namespace {

// Whoever can read the store can join the job anyway, so the store may carry the token.
Token agree_on_token(MeetingPlace& place, const Deadline& deadline) {
  const std::string mine = place.rank() == 0 ? Token::random().secret_hex() : "";
  return Token::parse(place.exchange("token", mine, deadline).front(),
                      "rank 0's text in the store");
}

Address address_to_listen_at(const Reach& reach, const Deadline& deadline) {
  if (!reach.interface.empty())
    return choose_local_address(reach.interface, "TUTTI_INTERFACE", local_interfaces());
  if (reach.towards.empty()) return *Address::from_number("127.0.0.1", 0);
  // Any port will do: only the route counts.
  return local_address_towards(resolve({reach.towards, 1}, deadline).front());
}

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

Group connect_over(MeetingPlace& place, const std::string& name, const Reach& reach,
                   const Deadline& deadline) {
  if (place.size() == 1) return Group();
  const Token token = agree_on_token(place, deadline);
  const ConnectBase base{
      .listener = std::make_shared<Listener>(address_to_listen_at(reach, deadline).with_port(0),
                                             Credentials{.token = token, .job = "c10d"}),
      .token = token,
  };
  Group group = tutti::connect(place, "group", base, {.by_core = false}, deadline);
  check_order(place, name, group, deadline);
  return group;
}

}  // namespace tutti::python
