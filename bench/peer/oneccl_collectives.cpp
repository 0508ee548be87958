// oneCCL's side of `tutti_bench compare --all-reduce`:
//   mpiexec.hydra -n N oneccl_collectives ADDRESS ITERATIONS BYTES...
//
// All-reduces, measured and printed as mpi_collectives.c does; ranks are those of hydra's, each on
// a core of its own. ADDRESS is a file that is not there yet, through which they meet.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <oneapi/ccl.hpp>

namespace {

constexpr int kWarmup = 3, kRow = 20;
constexpr long kRowBytes = 8 << 10, kLongBytes = 64 << 20;
constexpr int kMeetTries = 6000;  // 10 ms apart: a minute

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) throw std::runtime_error("start this under mpiexec.hydra");
  return std::atoi(text);
}

void take_core(int index) {
  cpu_set_t usable, own;
  sched_getaffinity(0, sizeof usable, &usable);
  CPU_ZERO(&own);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &usable) && index-- == 0) CPU_SET(core, &own);
  if (CPU_COUNT(&own) == 1) sched_setaffinity(0, sizeof own, &own);
}

// Rank 0 makes the place of meeting, the others read where it is.
ccl::shared_ptr_class<ccl::kvs> meet(int rank, const std::string& file) {
  if (rank == 0) {
    auto place = ccl::create_main_kvs();
    const auto address = place->get_address();
    const std::string unfinished = file + ".part";
    std::ofstream(unfinished, std::ios::binary).write(address.data(), address.size());
    std::rename(unfinished.c_str(), file.c_str());
    return place;
  }
  ccl::kvs::address_type address;
  for (int attempt = 0; attempt < kMeetTries; ++attempt) {
    std::ifstream stream(file, std::ios::binary);
    if (stream.read(address.data(), address.size())) return ccl::create_kvs(address);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("rank 0 wrote no address to " + file);
}

void measure(ccl::communicator& group, long bytes, int iterations) {
  if (bytes >= kLongBytes) iterations = (iterations + 2) / 3;
  const int row = bytes < kRowBytes ? kRow : 1;
  const auto op = row > 1 ? ccl::reduction::max : ccl::reduction::sum;
  const int ranks = group.size();
  const float wanted = row > 1 ? ranks : ranks * (ranks + 1) / 2.0f;
  std::vector<float> data(bytes / 4);
  std::vector<double> times;
  int right = 1;
  for (int i = 0; i < iterations + kWarmup; ++i) {
    std::fill(data.begin(), data.end(), group.rank() + 1.0f);
    ccl::barrier(group);
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < row; ++j)
      ccl::allreduce(data.data(), data.data(), data.size(), ccl::datatype::float32, op, group)
          .wait();
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    for (const float value : data) right &= value == wanted;
    if (i >= kWarmup) times.push_back(us.count() / row);
  }
  ccl::allreduce(times.data(), times.data(), times.size(), ccl::reduction::max, group).wait();
  ccl::allreduce(&right, &right, 1, ccl::reduction::min, group).wait();
  std::sort(times.begin(), times.end());
  if (group.rank() == 0)
    std::printf("{\"bytes\": %ld, \"p50_us\": %.3f, \"correct\": %s}\n", bytes,
                times[times.size() / 2], right ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) try {
  const int rank = number_in("PMI_RANK"), ranks = number_in("PMI_SIZE");
  take_core(rank);
  ccl::init();
  auto group = ccl::create_communicator(ranks, rank, meet(rank, argv[1]));
  for (int i = 3; i < argc; ++i) measure(group, std::atol(argv[i]), std::atoi(argv[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "oneCCL: %s\n", error.what());
  return 1;
}
