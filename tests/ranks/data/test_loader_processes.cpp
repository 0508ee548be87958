#include <gmock/gmock.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/data/combine.h"
#include "tutti/data/loader/loader.h"
#include "tutti/data/loader/registered.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

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
        if (row == 13 && what == "stops") raise(SIGSTOP);
        sample.columns[0] = scalar(row * 1000 + draw.below(1000));
        return sample;
      },
      {.name = "drawn", .columns = {{.name = "y", .dtype = DType::int64, .shape = {}}}});
}

const Registered kMade("made", made);

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

  void expect_whole(Loader& loader, const Epoch& epoch) {
    for (int64_t step = 0; step < epoch.num_batches(); ++step)
      for (int replica : {0, 1})
        EXPECT_EQ(labels_of(loader.take(step, replica, in_time())),
                  labels_of(epoch.part(step, share(epoch.batch_size(step), 2, replica))))
            << "step " << step;
  }
};

TEST_F(LoaderProcesses, GiveTheSameBytes) {
  const Dataset data = kMade("works").shuffle().batch(10);
  Loader loader(kTwo);
  for (int64_t number : {0, 1}) {
    const Epoch epoch = data.epoch({.epoch = number, .seed = 3});
    loader.begin(epoch, plan_of(epoch, 2));
    expect_whole(loader, epoch);
  }
  EXPECT_EQ(loader.report().stages.at(0).name, "drawn");
}

TEST_F(LoaderProcesses, OneThatIsKilledIsReplacedAndItsWorkDoneAgain) {
  const test::TempFolder folder;
  const std::string once = (folder.path() / "once").string();
  const Epoch epoch = kMade("dies-once " + once).shuffle().batch(10).epoch({});
  Loader loader(kTwo);
  loader.begin(epoch, plan_of(epoch, 2));
  std::vector<int64_t> rows;
  for (int64_t step = 0; step < epoch.num_batches(); ++step)
    for (int replica : {0, 1})
      for (int64_t label : labels_of(loader.take(step, replica, in_time())))
        rows.push_back(label / 1000);
  const auto order = numbers(64).shuffle().batch(64).epoch({});
  const auto expected = order.rows(0);
  EXPECT_EQ(rows, std::vector<int64_t>(expected.begin(), expected.end()));
  EXPECT_TRUE(std::ifstream(once).good());
}

TEST_F(LoaderProcesses, ASampleThatKillsThemIsNamed) {
  const Epoch epoch = kMade("dies").batch(8).epoch({});
  Loader loader(kTwo);
  loader.begin(epoch, plan_of(epoch, 1));
  loader.take(0, 0, in_time());
  EXPECT_THAT(message_of<DataError>([&] { loader.take(1, 0, in_time()); }),
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

TEST_F(LoaderProcesses, OneThatStandsStillIsNamed) {
  const Epoch epoch = kMade("stops").batch(8).epoch({});
  Loader loader(kTwo);
  loader.begin(epoch, plan_of(epoch, 1));
  loader.take(0, 0, in_time());
  EXPECT_THAT(message_of<Timeout>([&] { loader.take(1, 0, Deadline(Millis{1'000})); }),
              AllOf(HasSubstr("batch 2 of epoch 1 was not ready within 1000 ms"),
                    HasSubstr("(pid "), HasSubstr("row 13")));
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
