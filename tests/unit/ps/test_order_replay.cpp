// Asynchronous trainings of threads over real connections, and again in the order that was
// recorded: whoever is slow this time, every worker is given the same bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "tutti/base/random.h"
#include "tutti/base/sha256.h"
#include "tutti/ps/spec/update_order.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/job_of_threads.h"

namespace tutti::ps {
namespace {

using ::testing::HasSubstr;
using ::tutti::test::TempFolder;

constexpr Millis kPatience{20'000};  // of each wait

Spec spec_of(int servers, int workers, Staleness staleness) {
  Spec spec{.rule = optim::sgd({.learning_rate = 0.25, .momentum = 0.5})};
  spec.variables = {{"a", {2048}, DType::float32}, {"b", {64, 64}, DType::float32}};
  const PlacementOptions options{.num_servers = servers,
                                 .partitioner = Partitioner::fixed(servers)};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 4096);
  spec.num_partitions = servers;
  spec.staleness = staleness;
  spec.num_workers = workers;
  spec.shape = ReductionShape::flat(workers);
  return spec;
}

struct Played {
  std::vector<std::string> seen;              // by worker: of all that it was given
  std::vector<std::vector<int64_t>> batches;  // by worker
  std::vector<std::string> errors;            // by worker; "": it came to the end
};

struct Playing {
  uint64_t moods = 0;  // who is slow when
  int64_t batches = 24;
  std::string asked = "seed: 1\n";
};

/// A worker's gradient is of the values that it was given, so that any other order has other bits.
void play_worker(Client& client, const Playing& how, int worker, Played& played) {
  const Spec& spec = client.spec();
  const int pieces = static_cast<int>(spec.pieces.size());
  Sha256 seen;
  const auto pull_all = [&](int64_t step) {
    for (int piece = 0; piece < pieces; ++piece) client.pull(piece, step);
  };
  std::vector<std::vector<float>> values(spec.pieces.size());
  const auto fetch_all = [&](int64_t step, bool uses = true) {
    for (int piece = 0; piece < pieces; ++piece)
      client.fetch(piece, step, Deadline(kPatience), [&](const Bytes& got) {
        auto& mine = values[static_cast<size_t>(piece)];
        mine.resize(got.span.size() / sizeof(float));
        std::memcpy(mine.data(), got.span.data(), got.span.size());
        if (uses) seen.update(got.span.data(), got.span.size());
      });
  };
  pull_all(0);
  fetch_all(0);
  LeaseRequest request{.num_batches = how.batches, .agreed = how.asked};
  int64_t step = 0;
  for (;; ++step) {
    const Lease lease = client.lease(request, Deadline(kPatience));
    request.returned = lease.batch;
    request.sums = {values[0][0]};
    if (lease.batch < 0) break;
    played.batches[static_cast<size_t>(worker)].push_back(lease.batch);
    if (step > 0) fetch_all(step);
    const uint64_t mood = random_key(how.moods, RandomPurpose::test,
                                     {static_cast<uint64_t>(worker), static_cast<uint64_t>(step)});
    if (uniform_double(mood) < 0.5)
      std::this_thread::sleep_for(Millis{static_cast<int64_t>(uniform_double(mood) * 12)});
    for (int piece = 0; piece < pieces; ++piece) {
      const auto& mine = values[static_cast<size_t>(piece)];
      const auto bytes = static_cast<int64_t>(mine.size() * sizeof(float));
      const auto memory = client.allocate(bytes);
      auto* const gradient = reinterpret_cast<float*>(memory.get());

      for (size_t i = 0; i < mine.size(); ++i)
        gradient[i] = (mine[i] - static_cast<float>(lease.batch + worker)) * 0.1F;
      client.push(
          {.piece = piece,
           .step = step,
           .learning_rate = 0.25,
           .parts = {{worker, std::vector<uint8_t>(
                                  spec.pieces[static_cast<size_t>(piece)].segments.size(), 1)}},
           .payload = {{memory.get(), static_cast<size_t>(bytes)}, memory}});
    }
  }
  if (step > 0) fetch_all(step, false);
  pull_all(step);  // as at the end of an epoch, which begins with the newest values
  fetch_all(step);
  client.wait_until_settled(Deadline(kPatience));
  played.seen[static_cast<size_t>(worker)] = seen.hex();
}

/// Ends all workers where one has failed, as a launcher does: they would wait for its batch.
class Workers {
 public:
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (Client* client : clients_) client->give_up(kWhy);
  }

  class Member {
   public:
    Member(Workers& all, Client& client) : all_(all), client_(client) {
      const std::lock_guard lock(all_.mutex_);
      all_.clients_.insert(&client_);
      if (all_.ended_) client_.give_up(kWhy);
    }
    ~Member() {
      const std::lock_guard lock(all_.mutex_);
      all_.clients_.erase(&client_);
    }
    Member(const Member&) = delete;

   private:
    Workers& all_;
    Client& client_;
  };

 private:
  static constexpr const char* kWhy = "another worker has failed";
  std::mutex mutex_;
  std::set<Client*> clients_;
  bool ended_ = false;
};

Played play(Job& job, const Spec& spec, const Playing& how,
            const std::shared_ptr<const UpdateOrder>& replay = nullptr) {
  Played played;
  played.seen.resize(static_cast<size_t>(spec.num_workers));
  played.batches.resize(played.seen.size());
  played.errors.resize(played.seen.size());
  Workers all;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < spec.num_workers; ++worker)
    workers.emplace_back([&, worker] {
      try {
        ClientOptions options = job.options(worker);
        options.replay = replay;
        Client client(options, job.credentials(), spec, [&](int piece) {
          return Bytes::copy_of(
              std::vector<std::byte>(static_cast<size_t>(spec.pieces[piece].num_bytes)));
        });
        const Workers::Member member(all, client);
        play_worker(client, how, worker, played);
      } catch (const std::exception& error) {
        played.errors[static_cast<size_t>(worker)] = error.what();
        all.end();
      }
    });
  for (std::thread& worker : workers) worker.join();
  return played;
}

const Credentials kCredentials{Token::random(), "test", nullptr};

Played record(const TempFolder& folder, const Spec& spec, const Playing& how) {
  const std::filesystem::path parts = folder / "parts";
  std::filesystem::create_directories(parts);
  Played played;
  {
    Job job(spec.num_partitions, spec.num_workers, true, kCredentials, {.record = parts});
    played = play(job, spec, how);
  }
  write_order(folder / "order", merged_order(parts, spec.num_partitions));
  std::filesystem::remove_all(parts);
  return played;
}

Played replay(const TempFolder& folder, const Spec& spec, const Playing& how) {
  Job job(spec.num_partitions, spec.num_workers, true, kCredentials, {.replay = folder / "order"});
  return play(job, spec, how, std::make_shared<const UpdateOrder>(read_order(folder / "order")));
}

TEST(OrderReplay, GivesEveryWorkerTheSameBytes) {
  for (const Staleness staleness : {Staleness::unbounded(), Staleness(1)})
    for (const int servers : {1, 2, 3})
      for (const int workers : {1, 3}) {
        SCOPED_TRACE(::testing::Message() << staleness.text() << " " << servers << " " << workers);
        const TempFolder folder;
        const Spec spec = spec_of(servers, workers, staleness);
        const Played first = record(folder, spec, {.moods = 1});
        const UpdateOrder order = read_order(folder / "order");
        EXPECT_EQ(order.num_updates(), 24 * std::ssize(spec.pieces));
        int64_t records = 0;
        for (const auto& partition : order.partitions) records += std::ssize(partition);
        EXPECT_LE(8 * records, 16 * order.num_updates() + 16 * workers * std::ssize(spec.pieces) +
                                   8 * workers * (servers + 1));
        for (const uint64_t moods : {2, 3}) {
          const Played again = replay(folder, spec, {.moods = moods});
          for (int worker = 0; worker < workers; ++worker) {
            EXPECT_EQ(again.errors[worker], "");
            EXPECT_EQ(again.seen[worker], first.seen[worker]) << "worker " << worker;
            EXPECT_EQ(again.batches[worker], first.batches[worker]) << "worker " << worker;
          }
        }
      }
}

// Else the test above would say nothing.
TEST(OrderReplay, OtherwiseWorkersAreGivenOtherBytes) {
  const Spec spec = spec_of(2, 3, Staleness::unbounded());
  std::set<std::string> all;
  for (const uint64_t moods : {1, 2, 3}) {
    const TempFolder folder;
    all.insert(record(folder, spec, {.moods = moods}).seen[0]);
  }
  EXPECT_GT(all.size(), 1U);
}

TEST(OrderReplay, OfAnotherJobIsToldSo) {
  const TempFolder folder;
  const Spec spec = spec_of(2, 2, Staleness::unbounded());
  record(folder, spec, {.moods = 1, .batches = 6});
  const Played other = replay(folder, spec, {.moods = 1, .batches = 6, .asked = "seed: 2\n"});
  EXPECT_THAT(other.errors,
              ::testing::Contains(HasSubstr("it has seed: 1\n  this job has seed: 2")));
}

TEST(OrderReplay, OfAJobThatEndedEarlierIsToldSo) {
  const TempFolder folder;
  const Spec spec = spec_of(2, 2, Staleness::unbounded());
  record(folder, spec, {.moods = 1, .batches = 6});
  const Played longer = replay(folder, spec, {.moods = 1, .batches = 7});
  EXPECT_THAT(longer.errors, ::testing::Contains(HasSubstr("--replay-order")));
}

}  // namespace
}  // namespace tutti::ps
