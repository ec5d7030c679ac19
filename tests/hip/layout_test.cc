// What the module takes for granted of AMD's runtime and does not read from a header, compared with the one that is installed.
#include <gtest/gtest.h>
#include <cmath>
#include "hip/code.h"
#include "hip/tanh.h"

namespace {
constexpr unsigned kDisableTiming = fa::rt::hipEventDisableTiming;  // which AMD's header makes a macro
}
#ifdef HIP_HEADERS
#include <hip/hip_runtime_api.h>
#endif

namespace {

#ifndef HIP_HEADERS
TEST(Layout, AsInTheHeader) { GTEST_SKIP() << "AMD's header is not installed, by which to check " << kDisableTiming; }
#else
TEST(Layout, AsInTheHeader) {
    namespace rt = fa::rt;
#if HIP_VERSION_MAJOR >= 6
    const rt::PropertyOffsets& at = rt::kPropertiesR0600;
    EXPECT_EQ(int(hipMemoryTypeDevice), 2);
    EXPECT_EQ(int(hipMemoryTypeUnregistered), 0);
    EXPECT_EQ(offsetof(hipPointerAttribute_t, type), offsetof(rt::PointerAttributes, type));
#else
    const rt::PropertyOffsets& at = rt::kPropertiesR0000;
    EXPECT_EQ(int(hipMemoryTypeDevice), 1);
    EXPECT_EQ(offsetof(hipPointerAttribute_t, memoryType), offsetof(rt::PointerAttributes, type));
#endif
    EXPECT_EQ(at.memory, offsetof(hipDeviceProp_t, totalGlobalMem));
    EXPECT_EQ(at.shared_per_block, offsetof(hipDeviceProp_t, sharedMemPerBlock));
    EXPECT_EQ(at.multiprocessors, offsetof(hipDeviceProp_t, multiProcessorCount));
    EXPECT_EQ(at.arch, offsetof(hipDeviceProp_t, gcnArchName));
    EXPECT_EQ(offsetof(hipDeviceProp_t, name), 0u);
    EXPECT_LE(2 * sizeof(hipDeviceProp_t), rt::kPropertyBytes);
    EXPECT_EQ(sizeof hipDeviceProp_t().name, sizeof rt::DeviceProperties().name);
    EXPECT_EQ(sizeof hipDeviceProp_t().gcnArchName, sizeof rt::DeviceProperties().arch);
    EXPECT_EQ(offsetof(hipPointerAttribute_t, device), offsetof(rt::PointerAttributes, device));
    EXPECT_EQ(offsetof(hipPointerAttribute_t, isManaged), offsetof(rt::PointerAttributes, managed));
    EXPECT_LE(sizeof(hipPointerAttribute_t), sizeof(rt::PointerAttributes));
    const struct {
        int ours, theirs;
    } values[] = {{rt::hipSuccess, ::hipSuccess},
                  {rt::hipErrorInvalidValue, ::hipErrorInvalidValue},
                  {rt::hipErrorOutOfMemory, ::hipErrorOutOfMemory},
                  {rt::hipErrorInvalidConfiguration, ::hipErrorInvalidConfiguration},
                  {rt::hipErrorInvalidDeviceFunction, ::hipErrorInvalidDeviceFunction},
                  {rt::hipErrorNoDevice, ::hipErrorNoDevice},
                  {rt::hipErrorInvalidDevice, ::hipErrorInvalidDevice},
                  {rt::hipErrorNoBinaryForGpu, ::hipErrorNoBinaryForGpu},
                  {rt::hipErrorStreamCaptureImplicit, ::hipErrorStreamCaptureImplicit},
                  {rt::hipMemcpyDefault, ::hipMemcpyDefault},
                  {rt::hipStreamCaptureStatusNone, ::hipStreamCaptureStatusNone},
                  {rt::hipDeviceAttributePageableMemoryAccess, ::hipDeviceAttributePageableMemoryAccess},
                  {int(kDisableTiming), int(hipEventDisableTiming)}};
    for (const auto& value : values) EXPECT_EQ(value.ours, value.theirs) << "of value " << &value - values;
}
#endif

// Code for a processor runs there alone, whatever features it leaves open; that of a generic target on those that it serves.
TEST(Code, RunsOnItsProcessors) {
    const auto runs = [](const char* target, const char* device) { return fa::rt::runs_on(target, strlen(target), device); };
    EXPECT_TRUE(runs("gfx90a", "gfx90a:sramecc+:xnack-"));
    EXPECT_TRUE(runs("gfx90a:xnack-", "gfx90a:sramecc+:xnack-"));
    EXPECT_FALSE(runs("gfx90a:xnack+", "gfx90a:sramecc+:xnack-"));
    EXPECT_FALSE(runs("gfx90a", "gfx90a1"));
    EXPECT_FALSE(runs("gfx90a:xnack-", "gfx90a"));
    EXPECT_TRUE(runs("gfx11-generic", "gfx1103"));
    EXPECT_TRUE(runs("gfx11-generic", "gfx1151"));
    EXPECT_FALSE(runs("gfx11-generic", "gfx1170"));
    EXPECT_TRUE(runs("gfx12-generic", "gfx1200"));
    EXPECT_FALSE(runs("gfx12-generic", "gfx1250"));
    EXPECT_TRUE(runs("gfx10-3-generic", "gfx1036"));
    EXPECT_TRUE(runs("gfx9-4-generic:xnack-", "gfx942:sramecc+:xnack-"));
    EXPECT_FALSE(runs("gfx9-4-generic:xnack+", "gfx942:sramecc+:xnack-"));
    EXPECT_FALSE(runs("gfx11-generic", "gfx1201"));
}

TEST(Tanh, WithinThreeUlp) {
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 1009) {
        const float x = fa::float_of(bits), y = fa::tanh_by_exp2(x);
        const double exact = tanh(double(x)), ulp = x == 0 ? 1 : double(nextafterf(float(exact), 2.f) - float(exact));
        ASSERT_LE(fabs(double(y) - exact), 3 * ulp) << x;
        ASSERT_EQ(fa::tanh_by_exp2(-x), -y);
        ASSERT_LE(y, 1.f);
    }
    EXPECT_EQ(fa::tanh_by_exp2(INFINITY), 1.f);
    EXPECT_EQ(fa::tanh_by_exp2(-INFINITY), -1.f);
    EXPECT_TRUE(std::isnan(fa::tanh_by_exp2(NAN)));
    EXPECT_TRUE(std::signbit(fa::tanh_by_exp2(-0.f)));
}

}  // namespace
