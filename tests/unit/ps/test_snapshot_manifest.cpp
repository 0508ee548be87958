// Manifests of snapshots: what no job can go on from is refused with file and field, also under a
// digest that is right.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/ps/snapshot/snapshot_manifest.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tutti::test::message_of;

// Of two partitions, each with a piece and a part of a table, after 6 synchronous steps.
json fields() {
  Spec spec = two_pieces(2, Staleness(0));
  spec.num_partitions = 2;
  spec.pieces[1].partition = 1;
  spec.tables = {{.name = "t", .width = 2}};
  json manifest = {{"format", "tutti.snapshot/2"},
                   {"cut", 3},
                   {"step", 6},
                   {"time", "2026-11-23T12:00:00Z"},
                   {"spec", json::parse(to_text(spec))},
                   {"partitions", json::array()}};
  const std::string digest(64, 'a');
  for (int p = 0; p < 2; ++p)
    manifest["partitions"].push_back(
        {{"partition", p},
         {"step", 6},
         {"counts", to_text(PartitionCounts{.pushes = 24, .updates = 12})},
         {"tables", {6}},
         {"sums_of", "all workers"},
         {"files",
          {{{"name", fmt::format("partition-{}.safetensors", p)},
            {"bytes", 10},
            {"sha256", digest}},
           {{"name", fmt::format("partition-{}.table-0.rows-0.safetensors", p)},
            {"bytes", 11},
            {"sha256", digest}},
           {{"name", fmt::format("partition-{}.table-0.rows-1.safetensors", p)},
            {"bytes", 12},
            {"sha256", digest}}}}});
  manifest["partitions"][0]["cursor"] = Cursor().to_text();
  return manifest;
}

SnapshotManifest read(const std::string& text) {
  return manifest_from(text, "cut-000003/manifest.json");
}

TEST(SnapshotManifest, ComesBackFromItsText) {
  const SnapshotManifest manifest = read(sealed_manifest(fields().dump()));
  EXPECT_EQ(manifest.cut, 3);
  EXPECT_EQ(manifest.step, 6);
  EXPECT_EQ(manifest.spec.variables.size(), 2);
  ASSERT_EQ(manifest.partitions.size(), 2);
  EXPECT_EQ(manifest.partitions[1].counts.updates, 12);
  EXPECT_EQ(manifest.partitions[1].files[2].name, "partition-1.table-0.rows-1.safetensors");
  EXPECT_EQ(manifest.partitions[0].cursor, Cursor().to_text());
}

TEST(SnapshotManifest, AChangedByteIsFound) {
  const std::string good = sealed_manifest(fields().dump());
  int changed = 0;
  for (size_t at = 0; at < good.size(); at += 7) {
    std::string text = good;
    text[at] = static_cast<char>(text[at] ^ 1);
    // Between the fields JSON takes any blank.
    if (json::accept(text) && json::parse(text) == json::parse(good)) continue;
    ++changed;
    EXPECT_THAT(message_of<DataError>([&] { read(text); }), HasSubstr("cut-000003/manifest.json: "))
        << at;
  }
  EXPECT_GT(changed, 100);
  EXPECT_THAT(message_of<DataError>([&] { read(fields().dump()); }),
              HasSubstr("sha256: got none, expected one"));
}

struct Case {
  const char* where;  // a JSON pointer
  json value;         // discarded: the field is taken away
  const char* says;
};

TEST(SnapshotManifest, WhatNoJobCanGoOnFromIsRefusedByField) {
  const json gone(json::value_t::discarded);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const Case cases[] = {
      {"/format", "tutti.snapshot/9", "format: got \"tutti.snapshot/9\", which another version"},
      {"/cut", 0, "cut: got 0"},
      {"/step", -5, "step: got -5, expected an integer from 0 to"},
      {"/step", kMost, "step: got 9223372036854775807, expected"},
      {"/step", 1e300, "step: got 1e+300"},
      {"/step", 5, "partitions: 0: step: got 6, expected"},
      {"/step", gone, "step: got none"},
      {"/spec", gone, "spec: got none"},
      {"/spec", 7, "spec: "},
      {"/spec/workers", -1, "spec: workers: got -1, expected 1"},
      {"/spec/workers", 1e300, "spec: workers: got 1e+300"},
      {"/spec/pieces", gone, "spec: pieces: got none of variable \"w\""},
      {"/spec/pieces/0/3/0/1", 512, "spec: pieces: bytes: got 4096, expected 2048"},
      {"/spec/pieces/1/3/0/0", 0, "spec: pieces: got others of variable \"w\""},
      {"/spec/variables/0/2/0", 2048, "spec: pieces: got others of variable \"w\""},
      {"/spec/variables/0/1", 99, "spec: dtype: got number 99"},
      {"/spec/partitions", 3, "partitions: got 2, expected 3"},
      {"/spec/optimizer/name", "sgx", "spec: "},
      {"/partitions", gone, "partitions: got none"},
      {"/partitions", json::object(), "partitions: got 0, expected 2"},
      {"/partitions/1/partition", 0, "partitions: 1: partition: got 0"},
      {"/partitions/1/step", gone, "partitions: 1: step: got none"},
      {"/partitions/1/step", -1, "partitions: 1: step: got -1, expected an integer from"},
      {"/partitions/1/step", 7, "partitions: 1: step: got 7, expected an integer from"},
      {"/partitions/1/sums_of", gone, "partitions: 1: sums_of: got none"},
      {"/partitions/1/sums_of", "those left",
       "sums_of: got \"those left\", expected \"all workers\""},
      {"/partitions/1/counts", "[-1]", "partitions: 1: counts: "},
      {"/partitions/1/counts", "[0,1e300,0,0,[],0,0]", "counts: got 1e+300, expected"},
      {"/partitions/1/counts", "[0,-1,0,0,[],0,0]", "counts: got -1, expected"},
      {"/partitions/1/counts", "[0,0,0,0,[[1099511627776,1099511627776]],0,0]", "of staleness"},
      {"/partitions/1/counts", gone, "partitions: 1: counts: got none"},
      {"/partitions/0/cursor", gone, "partitions: 0: cursor: got none"},
      {"/partitions/0/cursor", R"({"epochs":[[0,0,-1,-3,[],[],[],0]],"asked":[]})",
       "partitions: 0: cursor: the next batch: got -3"},
      {"/partitions/0/cursor", R"({"epochs":[[0,0,-1,3,[],[7],[],0]],"asked":[]})",
       "cursor: a batch that was given out: got 7, expected an integer from 0 to 2"},
      {"/partitions/1/tables", json::array(), "partitions: 1: tables: got 0, expected 1"},
      {"/partitions/1/tables/0", -1, "tables: a version: got -1"},
      {"/partitions/1/files", json::array(), "files: name: got \"\""},
      {"/partitions/1/files/0/name", "../../x", "files: name: got \"../../x\""},
      {"/partitions/1/files/1/name", "/etc/passwd", "files: name: got \"/etc/passwd\""},
      {"/partitions/1/files/2/name", "partition-1.table-0.rows-0.safetensors",
       "expected the next rows of a table"},
      {"/partitions/1/files/0/bytes", -1, "bytes: got -1"},
      {"/partitions/1/files/0/sha256", "xyz", "sha256: got \"xyz\", expected 64 hex digits"},
  };
  for (const Case& c : cases) {
    json changed = fields();
    const json::json_pointer where(c.where);
    if (c.value.is_discarded())
      changed.at(where.parent_pointer()).erase(where.back());
    else
      changed.at(where) = c.value;
    EXPECT_THAT(message_of<DataError>([&] { read(sealed_manifest(changed.dump())); }),
                AllOf(HasSubstr("cut-000003/manifest.json: "), HasSubstr(c.says)))
        << c.where << " " << (c.value.is_discarded() ? "gone" : c.value.dump());
  }
}

// Of three workers, each of which has marked the cut after 6 steps at most.
json fields_out_of_step(const char* marks) {
  json manifest = fields();
  manifest["spec"] = json::parse(to_text([] {
    Spec spec = spec_from(fields()["spec"].dump());
    spec.num_workers = 3;
    spec.shape = ReductionShape::flat(3);
    spec.staleness = Staleness(2);
    return spec;
  }()));
  for (json& partition : manifest["partitions"]) {
    partition.erase("sums_of");
    partition["marks"] = json::parse("[[0, 6], [2, 4]]");
  }
  manifest["partitions"][1]["marks"] = json::parse(marks);
  return manifest;
}

TEST(SnapshotManifest, PartitionsOfAnotherMomentAreToldApart) {
  const auto objection = [](const json& fields) {
    return objection_to(read(sealed_manifest(fields.dump())));
  };
  EXPECT_EQ(objection(fields()), "");
  json torn = fields();
  torn["partitions"][1]["step"] = 5;
  torn["partitions"][1]["tables"] = {5};
  EXPECT_EQ(objection(torn), "partition 0 has step 6, partition 1 has step 5");
  EXPECT_EQ(objection(fields_out_of_step("[[0, 6], [2, 4]]")), "");
  EXPECT_EQ(objection(fields_out_of_step("[[0, 6], [2, 3]]")),
            "partition 0 has worker 2 up to step 4, partition 1 has worker 2 up to step 3");
  EXPECT_EQ(objection(fields_out_of_step("[[0, 6]]")),
            "partition 0 has worker 2 up to step 4, partition 1 has no mark of worker 2");
}

TEST(SnapshotManifest, MarksThatNoWorkersMadeAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"7", "marks: got 7, expected a list"},
      {"[7]", "marks: got 7, expected [worker, step]"},
      {"[[0, 6], [3, 4]]", "a worker: got 3, expected an integer from 1 to 2"},
      {"[[0, 6], [0, 4]]", "a worker: got 0, expected an integer from 1 to 2"},
      {"[[0, -1], [2, 4]]", "a step: got -1"},
      {"[[0, 1e300], [2, 4]]", "a step: got 1e+300"},
  };
  for (const auto& [marks, says] : cases)
    EXPECT_THAT(
        message_of<DataError>([&] { read(sealed_manifest(fields_out_of_step(marks).dump())); }),
        AllOf(HasSubstr("partitions: 1: "), HasSubstr(says)));
}

TEST(SnapshotManifest, MetadataOfFilesIsHeldAgainstTheSpecification) {
  Spec spec = two_pieces(2, Staleness(0));
  spec.tables = {{.name = "t", .width = 2}};
  const json good = {{"partition", 0},
                     {"segments",
                      {{{"variable", 1},
                        {"begin", 0},
                        {"end", 1024},
                        {"version", 6},
                        {"scalars", {0.1, 1.0, 1.0, 1.0, 6}}}}}};
  const auto read = [&](const json& facts) {
    return content_from(facts.dump(), spec, "partition-0.safetensors");
  };
  EXPECT_EQ(read(good).ranges[0].variable, 1);
  EXPECT_EQ(read({{"partition", 0}, {"table", "t"}}).table, 0);
  const std::tuple<const char*, json, const char*> cases[] = {
      {"/partition", 1, "partition: got 1"},
      {"/segments/0/variable", 2, "segments: variable: got 2"},
      {"/segments/0/variable", -1, "variable: got -1"},
      {"/segments/0/begin", -1, "begin: got -1"},
      {"/segments/0/end", 1025, "end: got 1025"},
      {"/segments/0/end", 0, "end: got 0"},
      {"/segments/0/version", -5, "version: got -5"},
      {"/segments/0/scalars", {0.1, 2.0, 1.0, 1.0, 6}, "scalars: got 2, expected 0 to 1"},
      {"/segments/0/scalars", {0.1, 1.0, 1.0, 1.0, -1}, "scalars: count: got -1"},
      {"/segments/0/scalars", {0.1}, "segments: scalars: got [0.1]"},
  };
  for (const auto& [where, value, says] : cases) {
    json changed = good;
    changed.at(json::json_pointer(where)) = value;
    EXPECT_THAT(message_of<DataError>([&] { read(changed); }),
                AllOf(HasSubstr("partition-0.safetensors: "), HasSubstr(says)));
  }
  EXPECT_THAT(message_of<DataError>([&] { read({{"partition", 0}, {"table", "u"}}); }),
              HasSubstr("table: got \"u\", which the manifest does not have"));
}

}  // namespace
}  // namespace tutti::ps::testing
