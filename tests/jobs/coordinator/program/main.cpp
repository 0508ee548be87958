// A coordinator's program of its own: what it does is its first argument. Without LibTorch.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/coordinator/cluster_coordinator.h"

using tutti::ClusterCoordinator;
using tutti::RemoteValue;
using tutti::RemoteWorker;

namespace {

struct Steps {
  int count = 0;
};

// Says that it is there, and takes a while.
const auto square = tutti::remote("square", [](RemoteWorker& worker, int64_t number) {
  std::printf("worker %d squares %ld, its step %d\n", worker.number(), static_cast<long>(number),
              ++worker.keep<Steps>().count);
  std::fflush(stdout);
  usleep(20'000);
  return number * number;
});

// On worker 2 it has no end; elsewhere as square.
const auto hang_on_two = tutti::remote("hang on two", [](RemoteWorker& worker, int64_t number) {
  if (worker.number() == 2) {
    std::printf("worker 2 hangs\n");
    std::fflush(stdout);
    while (true) pause();
  }
  usleep(1'000);
  return number * number;
});

const auto fail = tutti::remote("fail", [](int64_t number) -> int64_t {
  throw tutti::DataError("sample " + std::to_string(number) + " is damaged");
});

const auto forever = tutti::remote("forever", [] {
  std::printf("in a step without end\n");
  std::fflush(stdout);
  while (true) pause();
});

using Squares = tutti::RemoteFunction<int64_t(int64_t)>;

void run_squares(ClusterCoordinator& cluster, const Squares& step) {
  constexpr int64_t kMost = 60;
  std::vector<RemoteValue<int64_t>> values;
  for (int64_t i = 0; i < kMost; ++i) values.push_back(cluster.schedule(step, i));
  cluster.join();
  int64_t right = 0;
  for (int64_t i = 0; i < kMost; ++i) right += cluster.fetch(values[i]) == i * i ? 1 : 0;
  const auto counts = cluster.counts();
  std::printf("%ld squares of %ld, %ld steps done, %ld repeated, %ld workers lost\n",
              static_cast<long>(right), static_cast<long>(kMost), static_cast<long>(counts.done),
              static_cast<long>(counts.repeated), static_cast<long>(counts.workers_lost));
}

void squares(ClusterCoordinator& cluster) { run_squares(cluster, square); }
void two_hangs(ClusterCoordinator& cluster) { run_squares(cluster, hang_on_two); }

void errors(ClusterCoordinator& cluster) {
  cluster.schedule(fail, 7);
  try {
    cluster.join();
  } catch (const tutti::Error& error) {
    std::printf("caught: %s\n", error.what());
  }
  std::printf("after it: %ld\n", static_cast<long>(cluster.fetch(cluster.schedule(square, 5))));
}

void uncaught(ClusterCoordinator& cluster) {
  cluster.schedule(fail, 8);
  cluster.join();
}

void endless(ClusterCoordinator& cluster) {
  for (int i = 0; i < cluster.num_workers(); ++i) cluster.schedule(forever);
  cluster.join();
}

void late_name(ClusterCoordinator& cluster) {
  cluster.schedule(tutti::remote("late", [](int64_t x) { return x; }), 1);
}

void unknown_name(ClusterCoordinator& cluster) {
  cluster.schedule(tutti::RemoteFunction<int64_t(int64_t)>("sqare"), 1);
  cluster.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void(ClusterCoordinator&)>> programs = {
      {"squares", squares},          {"two_hangs", two_hangs}, {"errors", errors},
      {"uncaught", uncaught},        {"endless", endless},     {"late_name", late_name},
      {"unknown_name", unknown_name}};
  const std::string name = argc > 1 ? argv[1] : "";
  return tutti::coordinate(programs.at(name), {.without_workers = tutti::Millis{2'000}});
}
