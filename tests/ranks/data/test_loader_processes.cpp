#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

#include "tutti/data/combine.h"
#include "tutti/data/loader/loader.h"
#include "tutti/data/loader/registered.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {
namespace {

Deadline in_time() { return Deadline(Millis{30'000}); }

Dataset numbers(int64_t n) {
  std::vector<int64_t> y(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) y[static_cast<size_t>(i)] = i;
  return from_arrays({array_of(std::move(y), {n})});
}

// Arguments: what befalls row 13, and a file that says that it has.
Dataset made(const std::string& arguments) {
  const std::string what = arguments.substr(0, arguments.find(' '));
  const std::string file = arguments.substr(arguments.find(' ') + 1);
  return numbers(64).map(
      [what, file](Sample sample, Draw& draw) {
        const int64_t row = sample.columns[0].as<int64_t>()[0];
        if (row == 13 && what == "throws") throw std::runtime_error("unlucky");
        if (row == 13 && what == "dies") raise(SIGKILL);
        if (row == 13 && what == "dies-once" && !std::ifstream(file).good()) {
          std::ofstream(file) << "once";
          raise(SIGKILL);
        }
        if (row == 13 && what == "stops-once" && !std::ifstream(file).good()) {
          std::ofstream(file) << "once";
          raise(SIGSTOP);
        }
        sample.columns[0] = scalar(row * 1000 + draw.below(1000));
        return sample;
      },
      {.name = "drawn", .columns = {{.name = "y", .dtype = DType::int64, .shape = {}}}});
}

const Registered kMade("made", made);

// Arguments: a file that gets the number of each sample that is computed.
const Registered kKept("kept", [](const std::string& file) {
  return numbers(64)
      .map(
          [file](Sample sample) {
            std::ofstream(file, std::ios::app) << sample.columns[0].as<int64_t>()[0] << '\n';
            return sample;
          },
          {.columns = {{.name = "y", .dtype = DType::int64, .shape = {}}}})
      .cache();
});

LoaderPlan plan_of(const Epoch& epoch, int replicas) {
  return {.replicas = replicas,
          .end_step = epoch.num_batches(),
          .part = [epoch, replicas](int64_t step, int replica) {
            return BatchPart{step, share(epoch.batch_size(step), replicas, replica)};
          }};
}

std::vector<int64_t> labels_of(const Batch& batch) {
  const auto y = batch.columns[0].as<int64_t>();
  return {y.begin(), y.end()};
}

class LoaderProcesses : public testing::Test {
 protected:
  static constexpr LoaderOptions kTwo{.workers = 2, .kind = WorkerKind::processes};

  // From a step on, for as many replicas as it has begun with.
  void expect_rest(Loader& loader, const Epoch& epoch, int64_t first, int replicas) {
    for (int64_t step = first; step < epoch.num_batches(); ++step)
      for (int replica = 0; replica < replicas; ++replica)
        EXPECT_EQ(labels_of(loader.take(step, replica, in_time())),
                  labels_of(epoch.part(step, share(epoch.batch_size(step), replicas, replica))))
            << "step " << step;
  }
  void expect_whole(Loader& loader, const Epoch& epoch) { expect_rest(loader, epoch, 0, 2); }
};

TEST_F(LoaderProcesses, GiveTheSameBytes) {
  const Dataset data = kMade("works").shuffle().batch(10);
  Loader loader(kTwo);
  for (int64_t number : {0, 1}) {
    const Epoch epoch = data.epoch({.epoch = number, .seed = 3});
    loader.begin(epoch, plan_of(epoch, 2));
    expect_whole(loader, epoch);
  }
  EXPECT_THAT(loader.report().stages, Contains(AllOf(testing::Field(&StageReport::name, "drawn"),
                                                     testing::Field(&StageReport::samples, 128))));
}

// So little work that no thread beside the replica would be worth it.
TEST_F(LoaderProcesses, AreNeverTooFewToGoOn) {
  const Epoch epoch = kMade("works").repeat(40).batch(10).epoch({.epoch = 0, .seed = 3});
  Loader loader({.kind = WorkerKind::processes});
  loader.begin(epoch, plan_of(epoch, 2));
  expect_whole(loader, epoch);
}

TEST_F(LoaderProcesses, OneThatIsKilledIsReplacedAndItsWorkDoneAgain) {
  const TempFolder folder;
  const std::string once = (folder / "once").string();
  const Epoch epoch = kMade("dies-once " + once).shuffle().batch(10).epoch({.seed = 3});
  Loader loader(kTwo);
  loader.begin(epoch, plan_of(epoch, 2));
  testing::internal::CaptureStderr();
  expect_whole(loader, kMade("works").shuffle().batch(10).epoch({.seed = 3}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("(pid "), HasSubstr("was killed by signal 9, with row 13; another")));
  EXPECT_TRUE(std::ifstream(once).good());
}

TEST_F(LoaderProcesses, ASampleThatKillsThemIsNamed) {
  const Epoch epoch = kMade("dies").batch(8).epoch({});
  Loader loader(kTwo);
  loader.begin(epoch, plan_of(epoch, 1));
  loader.take(0, 0, in_time());
  EXPECT_THAT(message_of<Error>([&] { loader.take(1, 0, in_time()); }),
              AllOf(HasSubstr("row 13, sample 6 of batch 2 of epoch 1"),
                    HasSubstr("was killed by signal 9"), HasSubstr("pid ")));
}

TEST_F(LoaderProcesses, WhatTheyThrowIsNamed) {
  const Epoch epoch = kMade("throws").batch(8).epoch({});
  Loader loader(kTwo);
  loader.begin(epoch, plan_of(epoch, 1));
  loader.take(0, 0, in_time());
  EXPECT_THAT(message_of<DataError>([&] { loader.take(1, 0, in_time()); }),
              HasSubstr("row 13, sample 6 of batch 2 of epoch 1: drawn: unlucky"));
}

TEST_F(LoaderProcesses, OneThatStandsStillIsNamedAndGoesOnOrIsReplaced) {
  for (const int signal : {SIGCONT, SIGKILL}) {
    const TempFolder folder;
    const std::string once = (folder / "once").string();
    const Epoch epoch = kMade("stops-once " + once).batch(8).epoch({});
    Loader loader(kTwo);
    loader.begin(epoch, plan_of(epoch, 1));
    loader.take(0, 0, in_time());
    const std::string said =
        message_of<Timeout>([&] { loader.take(1, 0, Deadline(Millis{1'000})); });
    EXPECT_THAT(said, AllOf(HasSubstr("batch 2 of epoch 1 was not ready within 1000 ms"),
                            HasSubstr("(pid "), HasSubstr("row 13")));
    ASSERT_EQ(::kill(std::stoi(said.substr(said.find("(pid ") + 5)), signal), 0) << said;
    expect_rest(loader, kMade("works").batch(8).epoch({}), 1, 1);
  }
}

TEST_F(LoaderProcesses, KeepWhatIsCachedInOneMemory) {
  const TempFolder folder;
  const Dataset data = kKept((folder / "computed").string()).shuffle().batch(10);
  for (int loaders = 0; loaders < 2; ++loaders) {
    Loader loader({.workers = 3, .kind = WorkerKind::processes});
    for (int64_t number : {0, 1, 2}) {
      const Epoch epoch = data.epoch({.epoch = number});
      loader.begin(epoch, plan_of(epoch, 2));
      expect_whole(loader, epoch);
    }
  }
  std::ifstream file(folder / "computed");
  const std::multiset<int64_t> computed{std::istream_iterator<int64_t>(file), {}};
  EXPECT_EQ(computed.size(), 64u);
  EXPECT_EQ(std::set(computed.begin(), computed.end()).size(), 64u);
}

TEST_F(LoaderProcesses, NeedARegisteredFunction) {
  const Epoch epoch = numbers(8).batch(4).epoch({});
  Loader loader(kTwo);
  EXPECT_THAT(message_of<UsageError>([&] { loader.begin(epoch, plan_of(epoch, 1)); }),
              HasSubstr("by a registered function"));
  const Epoch mapped = kMade("works").map([](Sample sample) { return sample; }).batch(4).epoch({});
  EXPECT_THAT(message_of<UsageError>([&] { loader.begin(mapped, plan_of(mapped, 1)); }),
              HasSubstr("by a registered function"));
}

}  // namespace
}  // namespace tutti::data
