#include <cstdlib>

#include "tutti/device/cuda_driver.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

TEST(CudaDriver, SaysWhatEachGpuIs) {
  const DriverFacts facts = driver_facts({TUTTI_FAKE_DRIVER, TUTTI_FAKE_DRIVER});
  EXPECT_EQ(facts.why, "");
  EXPECT_EQ(facts.version, "570.86.15");
  EXPECT_EQ(facts.cuda_version, "12.8");
  ASSERT_EQ(facts.devices.size(), 2U);
  EXPECT_EQ(facts.devices[0].name, "Made Up 70");
  EXPECT_EQ(facts.devices[0].uuid, "GPU-46464646-4646-4646-4646-464646464646");
  EXPECT_EQ(facts.devices[0].memory_total_bytes, int64_t{1} << 33);
  EXPECT_EQ(facts.devices[0].memory_free_bytes, int64_t{1} << 32);
  EXPECT_EQ(facts.devices[0].capability, "9.0");
  EXPECT_THAT(facts.devices[0].peers, ElementsAre(1));
  EXPECT_EQ(facts.devices[1].uuid, "MIG-47474747-4747-4747-4747-474747474747") << "a part of one";
  EXPECT_EQ(facts.devices[1].memory_total_bytes, int64_t{1} << 34);
  EXPECT_EQ(facts.devices[1].memory_free_bytes, int64_t{1} << 32);
  EXPECT_THAT(facts.devices[1].peers, IsEmpty());
}

TEST(CudaDriver, WithoutNvmlLeavesOutWhatThatKnows) {
  const DriverFacts facts = driver_facts({TUTTI_FAKE_DRIVER, "no_such_nvml.so"});
  EXPECT_EQ(facts.why, "");
  EXPECT_EQ(facts.version, "");
  ASSERT_EQ(facts.devices.size(), 2U);
  EXPECT_EQ(facts.devices[0].name, "Made Up 70");
  EXPECT_EQ(facts.devices[0].memory_total_bytes, int64_t{1} << 33);
  EXPECT_EQ(facts.devices[0].memory_free_bytes, 0);
}

TEST(CudaDriver, SaysWhyThereIsNone) {
  const DriverFacts absent = driver_facts({"no_such_driver.so", TUTTI_FAKE_DRIVER});
  EXPECT_THAT(absent.why, HasSubstr("no_such_driver.so"));
  EXPECT_THAT(absent.devices, IsEmpty());

  setenv("FAKE_DRIVER_FAILS", "1", 1);
  const DriverFacts failed = driver_facts({TUTTI_FAKE_DRIVER, TUTTI_FAKE_DRIVER});
  unsetenv("FAKE_DRIVER_FAILS");
  EXPECT_THAT(failed.why, HasSubstr("says CUDA_ERROR_NO_DEVICE"));
  EXPECT_EQ(failed.version, "570.86.15") << "of a driver that sees no GPU";
  EXPECT_THAT(failed.devices, IsEmpty());
}

TEST(CudaDriver, ALibraryThatIsNoDriverKnowsNothing) {
  const DriverFacts facts = driver_facts({"libm.so.6", "libm.so.6"});
  EXPECT_THAT(facts.why, HasSubstr("libm.so.6 says error -1"));
  EXPECT_THAT(facts.devices, IsEmpty());
}

}  // namespace
}  // namespace tutti
