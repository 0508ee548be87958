#include "tutti/ps/view/outages.h"

#include <fmt/format.h>

namespace tutti::ps {

bool Outages::on_closed(int server, const std::string& how, TimePoint now) {
  unreached_[server] = how;
  return lost_at_.try_emplace(server, now).second;
}

void Outages::on_view(const View& view) {
  for (auto heard = heard_at_.begin(); heard != heard_at_.end();) {
    const auto [server, since] = *heard++;
    if (view.servers.at(server).alive) continue;
    lost_at_.try_emplace(server, since);
    heard_at_.erase(server);
  }
}

std::string Outages::on_welcome(int partition, int server, TimePoint now) {
  std::string line;
  const auto before = primaries_.find(partition);
  const int lost = before == primaries_.end() ? -1 : before->second;
  if (const auto since = lost_at_.find(lost); lost != server && since != lost_at_.end())
    line = fmt::format("partition {}: server {} took over from server {} after {:.3f} s", partition,
                       server, lost, std::chrono::duration<double>(now - since->second).count());
  primaries_[partition] = server;
  lost_at_.erase(server);  // its connection broke, it was not lost
  return line;
}

std::string Outages::words(const View& view) const {
  std::string all;
  for (const auto& [server, how] : unreached_)
    all += fmt::format("\n  {}: {}", view.servers[server].name, how);
  return all;
}

}  // namespace tutti::ps
