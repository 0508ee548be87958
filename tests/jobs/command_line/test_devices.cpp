// What `tutti` says of GPUs, on the fake CUDA: it finds that as a user's finds LibTorch's.
#include <fmt/format.h>

#include <filesystem>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

class CommandLineOnDevices : public testing::Test {
 protected:
  void SetUp() override {
    if (fake().filename() != "libtorch_cuda.so")
      GTEST_SKIP() << "needs LibTorch 2.13 or newer, without CUDA";
  }

  static std::filesystem::path fake() { return TUTTI_FAKE_CUDA; }

  static CommandResult tutti(const Words& words, int devices) {
    return test::tutti(
        words,
        // One thread: sums of the fake's kernels depend on the thread that runs them.
        {"LD_LIBRARY_PATH=" + fake().parent_path().string(), "OMP_NUM_THREADS=1",
         "FAKE_CUDA_DEVICES=" + std::to_string(devices), "FAKE_CUDA_MEMORY_MB=512"});
  }
};

TEST_F(CommandLineOnDevices, DoctorListsThem) {
  EXPECT_THAT(
      tutti({"doctor"}, 2),
      Exits(0, Out(AllOf(HasSubstr("libtorch_cuda.so\n"), HasSubstr("devices            2\n"),
                         HasSubstr("cuda:1  "), HasSubstr("512.0 MiB free of 512.0 MiB")))));
  const auto json = nlohmann::json::parse(tutti({"doctor", "--json"}, 2).out).at("cuda");
  EXPECT_EQ(json.at("library"), TUTTI_FAKE_CUDA);
  EXPECT_EQ(json.at("devices").size(), 2U);
  EXPECT_EQ(json.at("devices").at(1).at("memory_total_bytes"), 512 << 20);
  EXPECT_EQ(json.at("cure"), "");
}

TEST_F(CommandLineOnDevices, DoctorSaysWhatToDoWhereThereAreNone) {
  EXPECT_THAT(tutti({"doctor"}, 0),
              Exits(0, Out(AllOf(HasSubstr("devices            0: "),
                                 HasSubstr("LibTorch sees no device"), HasSubstr("`nvidia-smi`")))))
      << "no problem: ";
}

TEST_F(CommandLineOnDevices, WhatIsNotThereIsAnsweredBeforeTraining) {
  const struct {
    Words words;
    int devices;
    const char* answer;
  } cases[] = {
      {{"--device", "cuda"}, 0, "device cuda: LibTorch sees no device"},
      {{"--device", "cuda:0,3"}, 2, "--device cuda:0,3: there is no device 3; visible: 0 to 1"},
      {{"--device", "cuda", "--strategy", "mirrored", "--replicas", "4"},
       2,
       "4 replicas on 2 devices: write cuda:0x2,1x2 to let replicas share a device"},
      {{"--device", "cuda", "--strategy", "multi_worker", "--replicas", "3"},
       2,
       "3 replicas of 3 workers of this host on 2 devices: write cuda:0x2,1"},
      {{"--device", "cuda:0", "--memory-limit", "1024"}, 1, "1.0 GiB of 512.0 MiB on cuda:0"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(tutti(Words{"train", "mlp", "--data", kDoodles} + c.words, c.devices),
                Exits(2, Err(HasSubstr(c.answer))))
        << testing::PrintToString(c.words);
  }
}

TEST_F(CommandLineOnDevices, StepsAreNotTimedByTheHostsClock) {
  EXPECT_THAT(
      tutti({"bench", "step", "--model", "mlp", "--data", kDoodles, "--device", "cuda:0"}, 1),
      Exits(2, Err(HasSubstr("it times steps on CPUs alone"))));
}

TEST_F(CommandLineOnDevices, EvaluatesOnAll) {
  const TempFolder folder;
  const auto on_all = [&](const char* command, const Words& more) {
    const auto result =
        tutti(Words{command, "mlp", "--data", kDoodles, "--device", "cuda"} + more, 2);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result.out;
  };
  EXPECT_THAT(
      on_all("train", {"--max-steps", "4", "--epochs", "1", "--out", folder.path().string()}),
      AllOf(HasSubstr("on cuda:0, cuda:1"), Not(HasSubstr("bit for bit"))));
  EXPECT_THAT(on_all("evaluate", {"--checkpoints", folder / "model.safetensors"}),
              HasSubstr("(5000 samples"));
}

// One on the CPU, the other on a device: by way of the CPU, as where both are in one text.
TEST_F(CommandLineOnDevices, WorkersNeedNotHaveAlikeDevices) {
  const std::string train =
      fmt::format("exec {} train mlp --data {} --strategy multi_worker --max-steps 3 --threads 1",
                  TUTTI_PROGRAM, kDoodles);
  const auto result = tutti({"run", "-n", "2", "sh", "-c",
                             fmt::format("if [ $TUTTI_WORKER = 0 ]; then {0} --device cpu; else "
                                         "{0} --device cuda; fi",
                                         train)},
                            2);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

// Two logical devices of one, as two that take turns; several devices are mirrored by themselves.
TEST_F(CommandLineOnDevices, TrainsOnPartsOfADeviceAsInTurn) {
  const auto train = [](const Words& more, const TempFolder& folder) {
    const auto result =
        tutti(words_of("train mlp --max-steps 6 --threads 1 --data") +
                  Words{kDoodles, "--out", folder.path(), "--json", folder / "json"} + more,
              2);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return get_bytes(folder / "model.safetensors");
  };
  const TempFolder in_turn, parts, devices;
  const std::string expected = train({"--device", "cuda:0", "--replicas", "2"}, in_turn);
  EXPECT_FALSE(expected.empty());
  EXPECT_TRUE(train({"--device", "cuda:0x2", "--memory-limit", "256"}, parts) == expected);
  EXPECT_TRUE(train({"--device", "cuda"}, devices) == expected);
  const auto named = [](const TempFolder& folder) {
    return json_in(folder / "json").at("devices");
  };
  EXPECT_EQ(named(parts), nlohmann::json({"cuda:0", "cuda:0"}));
  EXPECT_EQ(named(devices), nlohmann::json({"cuda:0", "cuda:1"}));
}

}  // namespace
}  // namespace tutti::test
