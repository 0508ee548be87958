// Snapshots on disk: what was written comes back as a model, on any number of servers; what is
// damaged or of another model is refused by name; a full disk leaves nothing that looks complete.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/ps/snapshot/snapshot.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"
#include "tutti/ps/snapshot/snapshot_series.h"
#include "tutti/ps/snapshot/snapshot_writer.h"

#include "tests/support/full_disk.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/begun_cut.h"
#include "tests/unit/ps/small_job.h"
#include "tests/unit/ps/trained_partitions.h"

namespace tutti::ps::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tutti::test::FullDisk;
using tutti::test::message_of;
using tutti::test::TempFolder;
using Kind = Message::Kind;

// Goes on from a snapshot, as worker 0 gives it to the servers.
std::vector<PartitionState> restored(const Snapshot& snapshot, Spec spec) {
  spec.goes_on_from = snapshot.name();
  std::vector<PartitionState> states;
  for (int p = 0; p < spec.num_partitions; ++p) {
    PartitionState& state = states.emplace_back(p, Compute::plain());
    state.apply(hello(spec, 0));
    snapshot.assign(spec, p, [&](Message assign) {
      assign.worker = 0;
      EXPECT_EQ(state.objection(assign), "");
      EXPECT_FALSE(state.assigned());
      state.apply(assign);
    });
    EXPECT_TRUE(state.assigned());
  }
  return states;
}

// All memory of all pieces and tables, for states of one layout.
std::vector<std::string> all_memory(std::vector<PartitionState>& states) {
  std::vector<std::string> all;
  for (PartitionState& state : states) {
    for (const auto& [number, piece] : state.pieces()) {
      all.push_back(piece.facts());
      for (const Bytes& block : piece.memory()) all.push_back(raw(block));
    }
    std::ranges::move(rows_of(state.tables()), std::back_inserter(all));
  }
  return all;
}

// Writes the cut of all partitions as the view service and its servers do.
fs::path write_snapshot(const fs::path& folder, std::vector<PartitionState>& states) {
  SnapshotSeries series({.folder = folder, .goes_on_from = folder / "cut-000000"});
  View view{.number = 1};
  view.partitions.resize(states.size());
  const auto cut = begin_cut(series, view);
  EXPECT_TRUE(cut);
  for (int p = 0; p < std::ssize(states); ++p) {
    PartitionCut made(states[p], cut->sequence, cut->text);
    series.on_written({.kind = Kind::written,
                       .partition = p,
                       .sequence = cut->sequence,
                       .text = write_partition(made, p)},
                      Clock::now());
  }
  EXPECT_TRUE(series.settle(Deadline(kPatience)));
  EXPECT_FALSE(series.busy());
  return find_snapshot(folder, "test");
}

Message written_part(int partition, int64_t cut, const CutPart& part) {
  return {.kind = Kind::written, .partition = partition, .sequence = cut, .text = to_text(part)};
}

class Restore : public ::testing::TestWithParam<int> {};

TEST_P(Restore, GivesTheSameStateOnAnyNumberOfServers) {
  const TempFolder folder;
  auto three = trained(spec_on(3));
  const Snapshot snapshot(write_snapshot(folder.path(), three));
  EXPECT_EQ(snapshot.step(), 2);
  EXPECT_EQ(snapshot.name(), "cut-000001");
  snapshot.require_same_model(spec_on(GetParam()));
  auto got = restored(snapshot, spec_on(GetParam()));
  auto expected = trained(spec_on(GetParam()));
  EXPECT_EQ(all_memory(got), all_memory(expected));
  EXPECT_EQ(got[0].counts().updates, expected[0].counts().updates);
  // A copy of rows that comes again changes nothing, nor does a value.
  snapshot.assign(spec_on(GetParam()), 0, [&](Message assign) {
    assign.worker = 0;
    got[0].apply(assign);
  });
  EXPECT_EQ(all_memory(got), all_memory(expected));
}

INSTANTIATE_TEST_SUITE_P(PsSnapshot, Restore, ::testing::Values(1, 2, 3, 5),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(PsSnapshot, VariablesAreWhole) {
  const TempFolder folder;
  auto states = trained(spec_on(3));
  auto one = trained(spec_on(1));
  const Snapshot snapshot(write_snapshot(folder.path(), states));
  const auto variables = snapshot.variables();
  ASSERT_EQ(variables.size(), 2);
  EXPECT_EQ(variables[0].name, "w");
  EXPECT_EQ(variables[0].array.to_string(), "float32 [12, 300]");
  EXPECT_EQ(variables[1].array.to_string(), "float64 [7]");
  for (int piece = 0; piece < std::ssize(one[0].spec().pieces); ++piece)
    for (const Segment& segment : one[0].spec().pieces[piece].segments) {
      const Array& array = variables[segment.variable].array;
      const int64_t width = size_of(array.dtype());
      EXPECT_EQ(std::memcmp(static_cast<std::byte*>(array.data()) + segment.begin * width,
                            one[0].piece(piece).parameters().span.data() + segment.offset_bytes,
                            static_cast<size_t>(segment.count() * width)),
                0);
    }
}

TEST(PsSnapshot, DamageIsFoundAndNamed) {
  const TempFolder folder;
  auto states = trained(spec_on(2));
  const fs::path cut = write_snapshot(folder.path(), states);
  const fs::path file = cut / "partition-1.safetensors";
  const std::string whole = tutti::test::get_bytes(file);
  const auto why = [&] { return message_of<DataError>([&] { Snapshot snapshot(cut); }); };
  for (const size_t at : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 16);
    tutti::test::put_bytes(file, flipped);
    EXPECT_THAT(why(), AllOf(HasSubstr("partition-1.safetensors: damaged: has sha256"),
                             HasSubstr("was written")));
  }
  tutti::test::put_bytes(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(why(), HasSubstr(fmt::format("partition-1.safetensors: damaged: has {} bytes, "
                                           "{} were written",
                                           whole.size() - 1, whole.size())));
  fs::remove(file);
  EXPECT_THAT(why(), AllOf(HasSubstr("partition-1.safetensors"), HasSubstr("No such file")));
  tutti::test::put_bytes(cut / "manifest.json", "{");
  EXPECT_THAT(why(), HasSubstr("manifest.json: cannot be read"));
}

TEST(PsSnapshot, AnotherModelIsRefusedByName) {
  const TempFolder folder;
  auto states = trained(spec_on(2));
  const Snapshot snapshot(write_snapshot(folder.path(), states));
  const auto why = [&](const std::function<void(Spec&)>& change) {
    Spec spec = spec_on(2);
    change(spec);
    return message_of<DataError>([&] { snapshot.require_same_model(spec); });
  };
  EXPECT_THAT(why([](Spec& s) { s.variables[0].shape = {12, 299}; }),
              AllOf(HasSubstr("variable \"w\": got float32 [12, 300], expected float32 [12, 299]"),
                    HasSubstr("cut-000001")));
  EXPECT_THAT(why([](Spec& s) { s.variables[1].dtype = DType::float32; }),
              HasSubstr("\"v\": got float64 [7], expected float32 [7]"));
  EXPECT_THAT(why([](Spec& s) { s.variables[1].name = "u"; }),
              HasSubstr("variable \"u\": got none, expected float64 [7]"));
  EXPECT_THAT(why([](Spec& s) { s.variables.pop_back(); }),
              HasSubstr("variable \"v\": got float64 [7], expected none"));
  EXPECT_THAT(why([](Spec& s) { s.tables[0].width = 4; }), HasSubstr("embedding table \"user\""));
  EXPECT_THAT(why([](Spec& s) { s.rule = optim::adagrad(); }),
              HasSubstr("optimizer: got name \"adam\", expected \"adagrad\""));
  EXPECT_THAT(why([](Spec& s) { s.rule = optim::adam({.beta1 = 0.5}); }),
              HasSubstr("optimizer: got beta1 0.9, expected 0.5"));
  Spec slower = spec_on(2);
  slower.rule = optim::adam({.learning_rate = 1e-6});
  snapshot.require_same_model(slower);
}

TEST(PsSnapshot, AFullDiskLeavesTheOldOne) {
  const TempFolder folder;
  auto states = trained(spec_on(1));
  const fs::path old = write_snapshot(folder.path(), states);
  SnapshotSeries series({.folder = folder.path(), .goes_on_from = old});
  View view{.number = 1};
  view.partitions.resize(1);
  const auto cut = begin_cut(series, view);
  ASSERT_TRUE(cut);
  SnapshotWriter writer([] {});
  Message written;
  {
    const FullDisk full(1024);
    writer.add(0, std::make_shared<PartitionCut>(states[0], cut->sequence, cut->text));
    for (auto all = writer.take_written(); written.text.empty(); all = writer.take_written())
      if (!all.empty()) written = all[0];
  }
  EXPECT_EQ(written.flags, Message::not_written);
  EXPECT_THAT(written.text, HasSubstr("File too large"));
  series.on_written(written, Clock::now());
  EXPECT_FALSE(series.busy());
  EXPECT_TRUE(series.settle(Deadline(kPatience)));
  EXPECT_THAT(folder.names(), ElementsAre("cut-000001", "snapshots.lock"));
  Snapshot{find_snapshot(folder.path(), "test")};
}

TEST(PsSnapshot, KeepsTheNewestAndNeverThoseOfAnotherJob) {
  const TempFolder folder;
  auto states = trained(spec_on(1));
  for (int i = 0; i < 4; ++i) write_snapshot(folder.path(), states);
  EXPECT_THAT(folder.names(), ElementsAre("cut-000003", "cut-000004", "snapshots.lock"));
  EXPECT_THAT(message_of<UsageError>([&] { SnapshotSeries({.folder = folder.path()}); }),
              AllOf(HasSubstr("it has cut-000004 of another job"), HasSubstr("--restore")));
  fs::create_directory(folder / "cut-000009.partial");
  const SnapshotSeries goes_on({.folder = folder.path(), .goes_on_from = folder / "cut-000004"});
  EXPECT_THAT(folder.names(), ElementsAre("cut-000003", "cut-000004", "snapshots.lock"));
  EXPECT_THAT(message_of<UsageError>([&] { find_snapshot(folder / "none", "--restore"); }),
              HasSubstr("--restore"));
}

TEST(PsSnapshot, ACutIsGivenUpWhenAServerIsLost) {
  View view{.number = 3};
  view.partitions = {{.primary = 0, .backup = 1}, {.primary = 1, .backup = 0}};
  view.servers = {{.name = "server 0", .alive = true}, {.name = "server 1", .alive = true}};
  CutInProgress cut(7, view);
  cut.on_written(written_part(0, 6, {.partition = 0, .step = 4}));
  EXPECT_THAT(cut.missing(), ElementsAre(0, 1));
  cut.on_written(written_part(0, 7, {.partition = 0, .step = 4}));
  EXPECT_THAT(cut.missing(), ElementsAre(1));
  view.partitions[0].backup = -1;  // a backup takes no part
  cut.on_view(view);
  EXPECT_EQ(cut.failure(), "");
  view.partitions[0] = {.primary = 0};
  view.partitions[1] = {.primary = 0};
  view.servers[1].ending = "was killed";
  cut.on_view(view);
  EXPECT_EQ(cut.failure(), "server 1 was killed");
  cut.on_written(written_part(1, 7, {.partition = 1, .step = 4}));
  EXPECT_FALSE(cut.complete());
}

TEST(PsSnapshot, ACutThatBeginsBeforeThereAreServersIsGivenUp) {
  View view{.number = 0};
  view.partitions.resize(1);
  CutInProgress cut(7, view);
  view = {.number = 1, .partitions = {{.primary = 0}}, .servers = {{.name = "server 0"}}};
  cut.on_view(view);
  EXPECT_EQ(cut.failure(), "partition 0 had no server when it began");
}

// Its mark may have come to one partition and not to the other.
TEST(PsSnapshot, ACutIsGivenUpWhenAWorkerGoesMeanwhile) {
  View view{.number = 3};
  view.partitions = {{.primary = 0}, {.primary = 1}};
  view.servers = {{.name = "server 0", .alive = true}, {.name = "server 1", .alive = true}};
  view.workers = {{.name = "worker 0", .alive = true, .comings = 1},
                  {.name = "worker 1", .ending = "was killed", .comings = 1}};
  CutInProgress comes(7, view);
  View again = view;
  again.workers[1] = {.name = "worker 1", .alive = true, .comings = 2};
  comes.on_view(again);
  EXPECT_EQ(comes.failure(), "") << "it had gone before";
  View twice = again;
  twice.workers[1].comings = 3;
  comes.on_view(twice);
  EXPECT_EQ(comes.failure(), "worker 1 was lost meanwhile");
  EXPECT_FALSE(comes.in_order());
  for (const bool finished : {false, true}) {
    CutInProgress cut(7, again);
    View gone = again;
    gone.workers[0].alive = false;
    gone.workers[0].ending = finished ? "has finished" : "was killed";
    gone.workers[0].finished = finished;
    cut.on_view(gone);
    EXPECT_EQ(cut.failure(),
              finished ? "worker 0 has finished meanwhile" : "worker 0 was killed meanwhile");
    EXPECT_EQ(cut.in_order(), finished);
  }
}

TEST(PsSnapshot, PartitionsThatAreNotOfOneMomentAreNoCut) {
  View view{.number = 1, .workers = {{.name = "worker 0", .ending = "was killed", .comings = 1}}};
  view.partitions.resize(3);
  const auto failure = [&](const std::vector<CutPart>& parts) {
    CutInProgress cut(1, view);
    for (const CutPart& part : parts) cut.on_written(written_part(part.partition, 1, part));
    EXPECT_EQ(cut.complete(), cut.failure().empty());
    return cut.failure();
  };
  const auto in_step = [](int partition, int64_t step, std::vector<int64_t> tables) {
    return CutPart{.partition = partition, .step = step, .tables = std::move(tables)};
  };
  using Marks = std::map<int, int64_t>;
  const auto free = [](int partition, int64_t step, Marks marks) {
    return CutPart{.partition = partition, .step = step, .marks = std::move(marks)};
  };
  EXPECT_EQ(failure({in_step(0, 4, {4}), in_step(1, -1, {}), in_step(2, 4, {4})}), "");
  EXPECT_THAT(failure({in_step(0, 4, {}), in_step(1, -1, {}), in_step(2, 5, {})}),
              HasSubstr("partition 0 has step 4, partition 2 has step 5: a worker was lost"));
  EXPECT_THAT(failure({in_step(0, 4, {4}), in_step(1, 4, {3}), in_step(2, 4, {4})}),
              HasSubstr("partition 1 has step 4, its embedding table 0 step 3"));
  // Gradients that are not finite are left out where they are.
  EXPECT_EQ(failure({free(0, 9, {{0, 4}}), free(1, 8, {{0, 4}}), free(2, 9, {{0, 4}})}), "");
  EXPECT_THAT(failure({free(0, 9, {{0, 4}}), free(1, 9, {{0, 4}}), free(2, 9, {{0, 5}})}),
              HasSubstr("partition 0 has worker 0 up to step 4, partition 2 has worker 0 up to "
                        "step 5: a worker went or came while"));
  EXPECT_THAT(failure({free(0, 9, {{0, 4}}), free(1, 9, {}), free(2, 9, {{0, 4}})}),
              HasSubstr("partition 1 has no mark of worker 0: a worker went or came while"));
  EXPECT_THAT(failure({free(0, 9, {}), in_step(1, 9, {}), free(2, 9, {})}),
              HasSubstr("partition 1 is in step and partition 0 is not"));
  view.workers[0] = {.name = "worker 0", .ending = "has finished", .finished = true};
  EXPECT_THAT(failure({in_step(0, 4, {}), in_step(1, -1, {}), in_step(2, 5, {})}),
              HasSubstr("partition 2 has step 5: the workers ended within a step"));
}

// What it pushed last may have reached one of them.
TEST(PsSnapshot, OutOfStepALostWorkerIsRemarked) {
  View view{.number = 1, .workers = {{.name = "worker 0", .ending = "was killed", .comings = 1}}};
  view.partitions.resize(1);
  const auto remark = [&](const CutPart& part) {
    CutInProgress cut(1, view);
    cut.on_written(written_part(0, 1, part));
    EXPECT_TRUE(cut.complete());
    return cut.remark();
  };
  const CutPart in_step{.step = 4}, out_of_step{.step = 4, .marks = std::map<int, int64_t>{}};
  EXPECT_EQ(remark(in_step), "");
  EXPECT_EQ(remark(out_of_step),
            "worker 0 was killed: what it did last may be in some of its partitions only");
  view.workers[0].comings = 0;  // it ended before it had pushed anything
  EXPECT_EQ(remark(out_of_step), "");
  view.workers[0] = {.name = "worker 0", .ending = "has finished", .finished = true, .comings = 1};
  EXPECT_EQ(remark(out_of_step), "");
}

// Whose second partition is of another step.
fs::path write_torn(const fs::path& folder, int64_t step) {
  auto states = trained(spec_on(2));
  const fs::path cut = write_snapshot(folder, states);
  const fs::path file = cut / "manifest.json";
  nlohmann::json manifest = nlohmann::json::parse(tutti::test::get_bytes(file));
  manifest.erase("sha256");
  manifest["partitions"][1]["step"] = step;
  manifest["partitions"][1]["tables"] = {step};
  tutti::test::put_bytes(file, sealed_manifest(manifest.dump()));
  return cut;
}

TEST(PsSnapshot, OneThatIsNotOfOneMomentIsRefusedAndAnOlderOneTaken) {
  const TempFolder folder;
  auto states = trained(spec_on(2));
  const fs::path whole = write_snapshot(folder.path(), states);
  const fs::path torn = write_torn(folder.path(), 1);
  EXPECT_EQ(find_snapshot(folder.path(), "--restore"), whole) << "the newest that is one";
  EXPECT_EQ(Snapshot(whole).step(), 2);
  const std::string why = "partition 0 has step 2, partition 1 has step 1";
  EXPECT_THAT(message_of<UsageError>([&] { find_snapshot(torn, "--restore"); }),
              AllOf(HasSubstr("--restore"), HasSubstr("cut-000002"), HasSubstr(why)));
  EXPECT_THAT(message_of<DataError>([&] { Snapshot{torn}; }),
              AllOf(HasSubstr("manifest.json"), HasSubstr(why)));
  fs::remove_all(whole);
  EXPECT_THAT(message_of<UsageError>([&] { find_snapshot(folder.path(), "--restore"); }),
              AllOf(HasSubstr("no snapshot that is of one moment"), HasSubstr(why)));
}

// It does not show whether it is of one moment.
TEST(PsSnapshot, OneOfAnEarlierFormatIsRefused) {
  const TempFolder folder;
  auto states = trained(spec_on(2));
  const fs::path file = write_snapshot(folder.path(), states) / "manifest.json";
  nlohmann::json manifest = nlohmann::json::parse(tutti::test::get_bytes(file));
  manifest.erase("sha256");
  manifest["format"] = "tutti.snapshot/1";
  tutti::test::put_bytes(file, manifest.dump());
  EXPECT_THAT(message_of<DataError>([&] { Snapshot{find_snapshot(folder.path(), "--restore")}; }),
              AllOf(HasSubstr("manifest.json"), HasSubstr("tutti.snapshot/1")));
}

}  // namespace
}  // namespace tutti::ps::testing
