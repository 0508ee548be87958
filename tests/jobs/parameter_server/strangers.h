/// Who is none of a job's, and bothers its ports.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <map>

#include "tutti/net/connect.h"

#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {

/// IPv4 addresses at which a process listens, on its host.
inline std::vector<Address> listening_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::map<std::string, Address> listening;  // by inode
  std::ifstream table(process + "/net/tcp");
  std::string line;
  std::getline(table, line);  // titles
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
        inode;
    if (state != "0A") continue;
    sockaddr_in raw{};
    raw.sin_family = AF_INET;
    raw.sin_addr.s_addr = static_cast<uint32_t>(std::stoul(local.substr(0, 8), nullptr, 16));
    raw.sin_port = htons(static_cast<uint16_t>(std::stoi(local.substr(9), nullptr, 16)));
    listening[inode] = Address(reinterpret_cast<const sockaddr*>(&raw), sizeof raw);
  }
  std::vector<Address> addresses;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with("socket:[")) continue;
    const auto found = listening.find(target.substr(8, target.size() - 9));
    if (found != listening.end()) addresses.push_back(found->second);
  }
  return addresses;
}

/// Sends noise of several lengths to every port of these processes, some of it cut off, some that
/// stays open. Returns how many ports there were.
inline int disturb(const std::vector<pid_t>& processes, uint64_t seed,
                   std::vector<FileDescriptor>& open) {
  int ports = 0;
  for (const pid_t pid : processes)
    for (const Address& address : listening_of(pid)) {
      ++ports;
      RandomStream random(random_key(seed, RandomPurpose::test, {uint64_t{address.port()}}));
      for (const size_t length : {size_t{0}, size_t{1}, size_t{7}, size_t{100}, size_t{70'000}}) {
        FileDescriptor socket = connect_to(address, "the job", Deadline(Millis{5'000}));
        std::string noise(length, '\0');
        for (char& byte : noise) byte = static_cast<char>(random());
        send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (random() % 2 == 0) open.push_back(std::move(socket));
      }
    }
  return ports;
}

}  // namespace tutti::test
