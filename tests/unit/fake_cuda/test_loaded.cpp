// Opened by a program that was not linked with it, and told what to do by the environment.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/command.h"
#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Loaded : public FakeCudaTest {
 protected:
  static CommandResult run(std::vector<std::string> environment) {
    const char* const before = std::getenv("LD_LIBRARY_PATH");
    environment.push_back(std::string("LD_LIBRARY_PATH=" TUTTI_FAKE_CUDA_FOLDER) +
                          (before != nullptr ? std::string(":") + before : ""));
    return run_command({TUTTI_FAKE_CUDA_PROGRAM}, environment);
  }
};

TEST_F(Loaded, IsTheCudaOfTheProgram) {
  const TempFolder folder;
  const auto report = folder.path() / "report.txt";
  const auto result = run({"FAKE_CUDA_DEVICES=3", "FAKE_CUDA_ORDER=seed:4",
                           "FAKE_CUDA_MEMORY_MB=96", "FAKE_CUDA_REPORT=" + report.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("accelerator cuda\n"), HasSubstr("devices 3\n"),
                                HasSubstr("memory 100663296\n"), HasSubstr("bits same\n")));
  std::ostringstream text;
  text << std::ifstream(report).rdbuf();
  EXPECT_THAT(text.str(), AllOf(HasSubstr("synchronous 0\n"), HasSubstr("host_waits ")));
}

TEST_F(Loaded, HasNoDeviceWhereThatIsSaid) {
  const auto result = run({"FAKE_CUDA_DEVICES=0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("devices 0\n"));
}

TEST_F(Loaded, HasTheFaultsThatAreSaid) {
  EXPECT_THAT(run({"FAKE_CUDA_STICK=1:100"}).out,
              AllOf(HasSubstr("error"), HasSubstr("would never end"), HasSubstr("stuck: cuda:1")));
  EXPECT_THAT(run({"FAKE_CUDA_FAIL_ALLOCATION=1:20"}).out,
              HasSubstr("error CUDA out of memory. Tried to allocate"));
}

TEST_F(Loaded, RefusesWordsThatItDoesNotKnow) {
  const auto result = run({"FAKE_CUDA_ORDER=late"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("FAKE_CUDA_ORDER: expected eager, lazy or seed:N, got \"late\""));
  EXPECT_THAT(run({"FAKE_CUDA_STICK=1"}).err, HasSubstr("expected DEVICE:NUMBER, got \"1\""));
}

}  // namespace
}  // namespace tutti::test
