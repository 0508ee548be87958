// What tutti doctor makes of a launcher's variables.
#include <gmock/gmock.h>

#include "tutti/cli/run/doctor.h"

namespace tutti::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Examination healthy() {
  Examination facts;
  facts.host.memory_total_bytes = facts.host.memory_available_bytes = int64_t{8} << 30;
  facts.descriptor_limit = 4096;
  facts.torch.version = "2.13.0";
  facts.torch.tried = "2.6,2.13";
  return facts;
}

TEST(Doctor, AJobThatIsUnderstoodIsNoProblem) {
  Examination facts = healthy();
  facts.cluster = ClusterSpec{.source = "torchrun", .num_workers = 4};
  EXPECT_TRUE(problems_of(facts).empty());
}

TEST(Doctor, ContradictionsBetweenVariablesAreFatal) {
  Examination facts = healthy();
  facts.cluster_error = "RANK=4 contradicts WORLD_SIZE=4";
  const auto problems = problems_of(facts);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(problems[0].fatal);
  EXPECT_THAT(problems[0].what, HasSubstr("RANK=4 contradicts WORLD_SIZE=4"));
}

TEST(Doctor, ALibTorchThatWasNotTriedIsNamedAndNotFatal) {
  for (const char* version : {"2.6.0", "2.6.1", "2.13.0+cpu"}) {
    Examination facts = healthy();
    facts.torch.version = version;
    EXPECT_TRUE(problems_of(facts).empty()) << version;
  }
  for (const char* version : {"2.11.0", "2.60.0", "2.1.3", "12.6.0", "2", ""}) {
    Examination facts = healthy();
    facts.torch.version = version;
    const auto problems = problems_of(facts);
    ASSERT_EQ(problems.size(), 1u) << version;
    EXPECT_FALSE(problems[0].fatal);
    EXPECT_THAT(problems[0].what,
                AllOf(HasSubstr("LibTorch " + std::string(version)), HasSubstr("2.6,2.13")));
  }
}

TEST(Doctor, WhatAPersonHasSetWronglyIsFatal) {
  Examination facts = healthy();
  facts.environment_error = "TUTTI_INTERFACE \"eth99\": this machine has no interface of that name";
  const auto problems = problems_of(facts);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(problems[0].fatal);
  EXPECT_THAT(problems[0].what, HasSubstr("eth99"));
}

// What is said of `name`.
std::string row_of(const DeviceFacts& facts, const std::string& name) {
  for (const auto& [word, text] : rows_of(facts))
    if (word == name) return text;
  return "no such row";
}

TEST(Doctor, NoGpuIsNoProblemAndHasACure) {
  Examination facts = healthy();
  facts.devices.cure = "this LibTorch has no CUDA\n  set Torch_DIR";
  EXPECT_TRUE(problems_of(facts).empty());
  EXPECT_EQ(row_of(facts.devices, "CUDA"), "none in LibTorch");
  EXPECT_EQ(row_of(facts.devices, "driver"), "none");
  EXPECT_EQ(row_of(facts.devices, "NCCL"), "none");
  EXPECT_EQ(row_of(facts.devices, "devices"), "0: this LibTorch has no CUDA\n  set Torch_DIR");
  EXPECT_TRUE(json_of(facts.devices).at("devices").empty());
}

TEST(Doctor, EachGpuHasALine) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const DeviceFacts facts{.library = "/lib/libtorch_cuda.so",
                          .driver = "570.86.15",
                          .driver_cuda = "12.8",
                          .nccl = "2.28.9",
                          .gpus = {{.name = "Made Up",
                                    .memory_total_bytes = 80 * kGiB,
                                    .memory_free_bytes = 79 * kGiB,
                                    .capability = "9.0",
                                    .peers = {1}},
                                   {.name = "", .memory_total_bytes = 8 * kGiB, .capability = ""}},
                          .cure = ""};
  EXPECT_EQ(row_of(facts, "CUDA"), "/lib/libtorch_cuda.so");
  EXPECT_EQ(row_of(facts, "driver"), "570.86.15, for CUDA up to 12.8");
  EXPECT_EQ(row_of(facts, "NCCL"), "2.28.9");
  EXPECT_EQ(row_of(facts, "devices"), "2");
  EXPECT_EQ(row_of(facts, "cuda:0"),
            "Made Up, 79.0 GiB free of 80.0 GiB, compute capability 9.0, reads the memory of "
            "cuda:1");
  EXPECT_EQ(row_of(facts, "cuda:1"), "a GPU, 8.0 GiB");
  const auto json = json_of(facts);
  EXPECT_EQ(json.at("devices").at(0).at("memory_free_bytes"), 79 * kGiB);
  EXPECT_EQ(json.at("devices").at(0).at("peers"), Json::array({1}));
  EXPECT_EQ(json.at("driver"), "570.86.15");
}

TEST(TorchFacts, KnowTheVersionsThatWereTried) {
  const TorchFacts facts = torch_facts();
  EXPECT_FALSE(facts.tried.empty());
  EXPECT_TRUE(was_tried("2.6.0", facts.tried)) << "the oldest that works";
}

}  // namespace
}  // namespace tutti::cli
