#include "tutti/ps/view/view.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

Json to_json(const std::vector<ProcessView>& processes) {
  Json list = Json::array();
  for (const ProcessView& process : processes)
    list.push_back({process.name, process.address, process.alive, process.ending, process.finished,
                    process.comings});
  return list;
}

std::vector<ProcessView> processes_from(const Json& list) {
  std::vector<ProcessView> processes;
  for (const Json& entry : list)
    processes.push_back(
        {entry.at(0), entry.at(1), entry.at(2), entry.at(3), entry.at(4), entry.at(5)});
  return processes;
}

void add_losses(const std::vector<ProcessView>& before, const std::vector<ProcessView>& after,
                std::vector<std::string>& lines) {
  for (size_t i = 0; i < after.size(); ++i) {
    const bool was = i < before.size() && before[i].alive;
    if (was && !after[i].alive)
      lines.push_back(fmt::format("{} {}", after[i].name, after[i].ending));
    if (!was && after[i].alive) lines.push_back(after[i].name + " has come");
  }
}

}  // namespace

std::string to_text(const View& view) {
  Json partitions = Json::array();
  for (const PartitionView& p : view.partitions)
    partitions.push_back({p.primary, p.backup, p.joining, p.epoch});
  return dump_json(Json{{"number", view.number},
                        {"partitions", partitions},
                        {"servers", to_json(view.servers)},
                        {"workers", to_json(view.workers)},
                        {"failure", view.failure}});
}

View view_from(std::string_view text) {
  return detail::read_json(text, "a view", [&](const Json& known) {
    View view{.number = known.at("number"), .failure = known.at("failure")};
    for (const Json& p : known.at("partitions"))
      view.partitions.push_back({p.at(0), p.at(1), p.at(2), p.at(3)});
    view.servers = processes_from(known.at("servers"));
    view.workers = processes_from(known.at("workers"));
    for (const PartitionView& p : view.partitions)
      for (const int server : {p.primary, p.backup, p.joining})
        if (server < -1 || server >= static_cast<int>(view.servers.size()))
          throw Error(fmt::format("a view names server {} of {}", server, view.servers.size()));
    return view;
  });
}

bool was_lost_between(const View& before, const View& after, int worker) {
  if (worker >= std::ssize(before.workers) || worker >= std::ssize(after.workers)) return false;
  const ProcessView& was = before.workers[worker];
  const ProcessView& is = after.workers[worker];
  return was.alive && is.alive && was.comings != is.comings;
}

bool same_primaries(const View& before, const View& after) {
  return std::ranges::equal(before.partitions, after.partitions, {}, &PartitionView::primary,
                            &PartitionView::primary);
}

std::vector<std::string> changes(const View& before, const View& after) {
  if (before.number == 0) return {};
  std::vector<std::string> lines;
  add_losses(before.servers, after.servers, lines);
  add_losses(before.workers, after.workers, lines);
  const auto name = [&](int server) { return after.servers.at(server).name; };
  for (size_t i = 0; i < std::min(before.partitions.size(), after.partitions.size()); ++i) {
    const PartitionView& was = before.partitions[i];
    const PartitionView& is = after.partitions[i];
    if (is.primary < 0 && was.primary >= 0)
      lines.push_back(fmt::format("partition {}: nobody has its parameters any more", i));
    if (is.primary >= 0 && is.primary != was.primary)
      lines.push_back(fmt::format("partition {}: {} takes over", i, name(is.primary)));
    if (is.backup >= 0 && is.backup != was.backup)
      lines.push_back(fmt::format("partition {}: {} is its backup", i, name(is.backup)));
    if (is.backup < 0 && was.backup >= 0)
      lines.push_back(fmt::format("partition {}: without a backup", i));
  }
  if (after.failure != before.failure) lines.push_back(after.failure);
  return lines;
}

std::vector<int> servers_for_later(const View& first, int num_servers) {
  std::vector<int> chosen(num_servers, -1);
  std::vector<int> spare;
  for (int server = 0; server < std::ssize(first.servers); ++server) {
    if (!first.servers[server].alive) continue;
    if (server < num_servers)
      chosen[server] = server;
    else
      spare.push_back(server);
  }
  auto next = spare.begin();
  for (int& server : chosen)
    if (server < 0 && next != spare.end()) server = *next++;
  return chosen;
}

ViewState::ViewState(int num_servers, int num_workers, bool backups, int reserved, bool later)
    : num_servers_(num_servers), reserved_(reserved), backups_(backups), later_(later) {
  if (num_servers < 1) throw UsageError(fmt::format("{} servers; expected 1 or more", num_servers));
  if (num_workers < 1) throw UsageError(fmt::format("{} workers; expected 1 or more", num_workers));
  view_.servers.resize(num_servers);
  view_.workers.resize(num_workers);
  view_.partitions.resize(num_servers);
}

int ViewState::add_server(const std::string& process, const std::string& address, int wanted) {
  auto& servers = view_.servers;
  if (wanted >= num_servers_ || (wanted >= 0 && !servers[wanted].name.empty()))
    throw UsageError(fmt::format("{} wants to be server {}: {}", process, wanted,
                                 wanted >= num_servers_
                                     ? fmt::format("there are {}, from 0 on", num_servers_)
                                     : "that is " + servers[wanted].name));
  if (wanted < 0) {
    const auto free =
        std::ranges::find(servers.begin() + reserved_, servers.end(), "", &ProcessView::name);
    wanted = static_cast<int>(free - servers.begin());
    if (free == servers.end()) servers.emplace_back();
  }
  servers[wanted] = {fmt::format("server {} ({})", wanted, process), address, true, ""};
  const auto before = view_.partitions;
  if (begun())
    publish(before);
  else
    begin_if_all_here();
  return wanted;
}

void ViewState::begin_if_all_here() {
  const auto& servers = view_.servers;
  std::vector<int> first(num_servers_);
  int spare = num_servers_ - 1;
  int stands_in = -1;
  for (int p = 0; p < num_servers_; ++p) {
    first[p] = p;
    if (servers[p].alive) continue;
    if (servers[p].ending.empty()) return;  // it may still come
    spare = spare_after(spare);
    if (spare < std::ssize(servers))
      first[p] = spare;
    else if (later_ && any_alive())
      first[p] = stands_in = alive_after(stands_in);
    else
      return;
  }
  const auto before = view_.partitions;
  for (int p = 0; p < num_servers_; ++p)
    view_.partitions[p] = {.primary = first[p], .backup = backups_ ? backup_of(first, p) : -1};
  publish(before);
}

bool ViewState::any_alive() const {
  return std::ranges::any_of(view_.servers, &ProcessView::alive);
}

// Round and round.
int ViewState::alive_after(int server) const {
  const int count = static_cast<int>(view_.servers.size());
  do server = (server + 1) % count;
  while (!view_.servers[server].alive);
  return server;
}

// One that came beside the first.
int ViewState::spare_after(int server) const {
  do ++server;
  while (server < std::ssize(view_.servers) && !view_.servers[server].alive);
  return server;
}

// The next one's, of those that have partitions; -1: there is no other.
int ViewState::backup_of(const std::vector<int>& first, int partition) const {
  for (int next = 1; next < num_servers_; ++next)
    if (const int server = first[(partition + next) % num_servers_]; server != first[partition])
      return server;
  return -1;
}

// Before the beginning: whether those that died have nobody in their place.
bool ViewState::too_few() const {
  if (later_)
    return std::ranges::none_of(view_.servers, [](const ProcessView& server) {
      return server.alive || server.ending.empty();
    });
  const auto first = view_.servers.begin();
  const auto died = std::count_if(first, first + num_servers_, [](const ProcessView& server) {
    return !server.alive && !server.ending.empty();
  });
  return died > std::count_if(first + num_servers_, view_.servers.end(),
                              [](const ProcessView& server) { return server.alive; });
}

void ViewState::add_worker(int worker, const std::string& process) {
  if (worker < 0 || worker >= static_cast<int>(view_.workers.size()))
    throw UsageError(
        fmt::format("worker {}: there are {}, from 0 on", worker, view_.workers.size()));
  ProcessView& place = view_.workers[worker];
  if (place.alive)
    throw UsageError(fmt::format("worker {} is there already: {}", worker, place.name));
  place = {.name = fmt::format("worker {} ({})", worker, process),
           .alive = true,
           .comings = place.comings + 1};
  if (begun()) publish(view_.partitions);
}

void ViewState::lose_server(int server, const std::string& ending) {
  ProcessView& lost = view_.servers.at(server);
  if (!lost.alive) return;
  lost.alive = false;
  lost.ending = ending;
  const auto before = view_.partitions;
  if (!begun() && !too_few()) return begin_if_all_here();
  if (!begun()) {
    view_.failure = fmt::format("{} {} before all servers had come", lost.name, ending);
    ++view_.number;
    return;
  }
  for (PartitionView& partition : view_.partitions) take_from(partition, server);
  publish(before);
}

void ViewState::miss_server(int server, const std::string& name, const std::string& ending) {
  ProcessView& missed = view_.servers.at(server);
  if (missed.alive || !missed.ending.empty()) return;
  missed.alive = true;
  missed.name = name;
  lose_server(server, ending);
}

void ViewState::lose_worker(int worker, const std::string& ending) {
  end_worker(worker, ending, false);
}

void ViewState::finish_worker(int worker) { end_worker(worker, "has finished", true); }

void ViewState::end_worker(int worker, const std::string& ending, bool finished) {
  ProcessView& ended = view_.workers.at(worker);
  const bool never_came = ended.comings == 0 && ended.ending.empty();
  if (!ended.alive && !never_came) return;
  if (never_came) ended.name = fmt::format("worker {}", worker);
  ended.alive = false;
  ended.ending = ending;
  ended.finished = finished;
  if (begun()) publish(view_.partitions);
}

void ViewState::take_from(PartitionView& partition, int server) {
  if (partition.joining == server) partition.joining = -1;
  if (partition.backup == server) partition.backup = -1;
  if (partition.primary != server) return;
  // One that has not caught up cannot take over, and has nobody to catch up with.
  partition.joining = -1;
  partition.primary = std::exchange(partition.backup, -1);
  if (partition.primary >= 0 || !view_.failure.empty()) return;
  const ProcessView& lost = view_.servers[server];
  view_.failure = fmt::format("{} {}, and nobody else had the parameters of partition {}",
                              lost.name, lost.ending, &partition - view_.partitions.data());
}

PartitionView& ViewState::named(int partition) {
  if (partition < 0 || partition >= num_servers_)
    throw Mismatch(fmt::format("partition {} of {}", partition, num_servers_));
  return view_.partitions[partition];
}

void ViewState::synced(int partition, int from, int server) {
  const auto before = view_.partitions;
  PartitionView& now = named(partition);
  if (now.primary != from || now.joining != server || server < 0) return;
  now.backup = std::exchange(now.joining, -1);
  publish(before);
}

void ViewState::suspect(int partition, int from, int server) {
  const auto before = view_.partitions;
  PartitionView& now = named(partition);
  if (now.primary != from || server < 0 || (now.backup != server && now.joining != server)) return;
  now.backup = now.joining = -1;
  cut_off_.insert({from, server});
  publish(before);
}

void ViewState::fail(const std::string& why) {
  const auto before = view_.partitions;
  if (view_.failure.empty()) view_.failure = why;
  publish(before);
}

// A partition without a backup gets the server that holds fewest.
void ViewState::find_joining() {
  if (!backups_) return;
  const auto load = [&](int server) {
    return std::ranges::count_if(view_.partitions, [&](const PartitionView& p) {
      return p.primary == server || p.backup == server || p.joining == server;
    });
  };
  for (PartitionView& partition : view_.partitions) {
    if (partition.primary < 0 || partition.backup >= 0 || partition.joining >= 0) continue;
    int best = -1;
    for (int server = 0; server < static_cast<int>(view_.servers.size()); ++server)
      if (view_.servers[server].alive && server != partition.primary &&
          !cut_off_.contains({partition.primary, server}) &&
          (best < 0 || load(server) < load(best)))
        best = server;
    partition.joining = best;
  }
}

void ViewState::publish(const std::vector<PartitionView>& before) {
  find_joining();
  ++view_.number;
  for (size_t i = 0; i < view_.partitions.size(); ++i)
    if (!(view_.partitions[i] == before[i])) view_.partitions[i].epoch = view_.number;
}

}  // namespace tutti::ps
