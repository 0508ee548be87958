// What a worker waits for, and of whom.
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/ps/client/client_state.h"

namespace tutti::ps {

bool ClientState::expects(int server) const {
  const auto its = [&](int partition) { return primary(partition) == server; };
  for (size_t i = 0; i < partitions_.size(); ++i)
    if (its(static_cast<int>(i)) &&
        !(partitions_[i].unsettled.empty() && partitions_[i].unsent.empty()))
      return true;
  if (its(0) && (lease_asked_ || meets())) return true;
  return std::ranges::any_of(wanted_,
                             [&](const auto& wish) { return its(partition_of(wish.first)); }) ||
         std::ranges::any_of(sparse_pulls_, [&](const auto& pull) {
           return std::ranges::any_of(pull.second.keys,
                                      [&](const auto& keys) { return its(keys.first); });
         });
}

void ClientState::ask_who() {
  for (const auto& [piece, step] : wanted_) ask(piece, step);
  for (size_t i = 0; i < partitions_.size(); ++i) ask_rows_of(static_cast<int>(i));
  if (meets() && partitions_[0].welcome) send(0, bring_);
}

std::string ClientState::words() const {
  std::vector<std::string> lines;
  const auto server = [&](int partition) {
    const int number = primary(partition);
    if (number < 0) return std::string("the servers, which have not all come");
    return view_.servers[number].name + (partitions_[partition].welcome ? "" : ", not connected");
  };
  for (const auto& [piece, step] : wanted_) {
    const auto waiting = waiting_.find(piece);
    if (waiting != waiting_.end())
      lines.push_back(fmt::format("step {} waits for {}", step, waiting->second));
    else
      lines.push_back(
          fmt::format("parameters for step {} of {}", step, server(partition_of(piece))));
  }
  for (const auto& [number, pull] : sparse_pulls_)
    for (const auto& [partition, keys] : pull.keys) {
      const auto waiting = pull.waiting.find(partition);
      lines.push_back(waiting != pull.waiting.end()
                          ? fmt::format("step {} waits for {}", pull.step, waiting->second)
                          : fmt::format("rows of \"{}\" for step {} of {}",
                                        spec_.tables[pull.table].name, pull.step,
                                        server(partition)));
    }
  if (meets()) {
    const auto waiting = waiting_.find(Message::kMeeting);
    lines.push_back(fmt::format("what others bring after {} steps, of {}", bring_.step,
                                waiting != waiting_.end() ? waiting->second : server(0)));
  }
  for (size_t i = 0; i < partitions_.size(); ++i)
    if (const size_t open = partitions_[i].unsettled.size() + partitions_[i].unsent.size();
        open > 0)
      lines.push_back(fmt::format("{} pushes at {}", open, server(static_cast<int>(i))));
  std::ranges::sort(lines);
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace tutti::ps
