// Devices of this process, where LibTorch has no CUDA. What needs a device is in the tests on the
// fake one.
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/queues/config.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::message_of;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(DeviceFunctions, TheCpuIsAlwaysThere) {
  ASSERT_EQ(list_physical_devices(DeviceKind::cpu).size(), 1U);
  ASSERT_EQ(list_logical_devices(DeviceKind::cpu).size(), 1U);
  EXPECT_EQ(to_string(list_logical_devices().front().spec), "cpu");
  EXPECT_EQ(to_string(devices_from("cpu")), "cpu");
}

class WithoutGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!list_physical_devices(DeviceKind::cuda).empty()) GTEST_SKIP() << "this machine has GPUs";
  }
};

TEST_F(WithoutGpus, ListsAreEmptyAndAutoIsTheCpu) {
  EXPECT_THAT(list_logical_devices(DeviceKind::cuda), IsEmpty());
  EXPECT_EQ(to_string(devices_from("auto")), "cpu");
  set_visible_devices({});  // hides none of none
}

TEST_F(WithoutGpus, OneThatIsNamedIsAnErrorWithACure) {
  for (const char* text : {"cuda", "cuda:0", "cpu,cuda:1"})
    EXPECT_THAT(message_of<UsageError>([&] { devices_from(text); }), HasSubstr("device cuda: "))
        << text;
  EXPECT_THAT(message_of<UsageError>([] { devices_from("mps"); }), HasSubstr("Apple"));
  EXPECT_THAT(message_of<UsageError>([] {
                set_visible_devices({{.kind = DeviceKind::cuda, .index = 0, .name = ""}});
              }),
              HasSubstr("cuda:0 is not there"));
}

TEST(DeviceFunctions, UseOfTheCpuFixesNothingAndTakesNoLimit) {
  const std::vector<DeviceSpec> cpu(2);
  use_devices("a test", cpu);
  set_visible_devices({});
  EXPECT_THAT(message_of<UsageError>([&] { use_devices("a test", cpu, 100); }),
              HasSubstr("a test: memory limit of 100 MiB: it is of GPUs, and none is used"));
}

TEST(DeviceFunctions, AKindIsThatOfItsDevices) {
  EXPECT_EQ(message_of<UsageError>([] { set_visible_devices({PhysicalDevice{}}); }),
            "set_visible_devices: cpu:0 is no cuda");
}

}  // namespace
}  // namespace tutti
