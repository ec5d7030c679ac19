// fa_convert against loops over elements, in host memory and in the device's.
#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include <vector>
#include "oracle/formats.h"
#include "support/device_memory.h"
#include "support/handle.h"
#include "support/rng.h"

namespace test {
namespace {

using Arena = std::vector<unsigned char>;

// A list of conversions between two arenas, whose tensors lie apart. Pointers are offsets until the arenas have an address.
class RandomConversions {
  public:
    explicit RandomConversions(uint64_t seed) : rng_(seed) {
        const int64_t count = rng_.chance(0.1) ? rng_.between(25, 60) : rng_.between(0, 5);
        for (int64_t i = 0; i < count; i++) add();
        x_.resize(x_.size() + 16), out_.resize(out_.size() + 16);
        fill(x_), fill(out_);
        for (const fa_conversion_t& c : list_) {
            if (c.flags) make_finite(c.out_dtype, c.out_stride, c.size, out_.data() + place(c.out));
            if (!c.x || c.x_dtype == c.out_dtype ? c.flags != 0 : true) make_finite(c.x_dtype, c.x_stride, c.size, x_.data() + place(c.x));
        }
    }

    std::string run(const Handle& handle, bool device) {
        const Arena want = wanted();
        DeviceMemory x, out;
        Arena got = out_;
        if (device) x = DeviceMemory(handle, x_.data(), x_.size()), out = DeviceMemory(handle, out_.data(), out_.size());
        std::vector<fa_conversion_t> list = list_;
        for (fa_conversion_t& c : list) {
            if (c.x) c.x = static_cast<unsigned char*>(device ? x.data() : x_.data()) + place(c.x);
            c.out = static_cast<unsigned char*>(device ? out.data() : got.data()) + place(c.out);
        }
        if (fa_convert(handle, list.data(), int64_t(list.size()), 0, nullptr) != FA_OK) return handle.error();
        if (device) out.read(got.data());
        for (size_t i = 0; i < want.size(); i++)
            if (want[i] != got[i]) return "byte " + std::to_string(i) + " of " + std::to_string(want.size()) + " differs";
        return "";
    }

  private:
    Rng rng_;
    Arena x_, out_;
    std::vector<fa_conversion_t> list_;

    static size_t place(const void* offset) { return reinterpret_cast<size_t>(offset) - 1; }

    // Strides of some order of the dimensions, with gaps; returns how many units it reaches over.
    int64_t strides(const fa_conversion_t& conversion, int64_t units, bool repeats, int64_t* stride) {
        int order[3] = {0, 1, 2};
        if (rng_.chance(0.4)) std::swap(order[rng_.between(0, 2)], order[rng_.between(0, 2)]);
        int64_t reach = units + (rng_.chance(0.3) ? rng_.between(0, 9) : 0);
        stride[3] = 1;
        for (int i = 2; i >= 0; i--) {
            int64_t& s = stride[order[i]];
            s = reach;
            if (repeats && rng_.chance(0.1)) s = 0;
            else reach = reach * std::max<int64_t>(conversion.size[order[i]], 1) + (rng_.chance(0.3) ? rng_.between(0, 9) : 0);
        }
        return reach;
    }

    const void* room(Arena* arena, int64_t reach, int64_t unit, int64_t scalar) {
        const size_t at = (arena->size() + 15) / 16 * 16 + (rng_.chance(0.3) ? size_t(scalar * rng_.between(0, 3)) : 0);
        arena->resize(at + size_t(reach * unit));
        return reinterpret_cast<const void*>(at + 1);
    }

    void add() {
        fa_conversion_t c{};
        const auto number = [&] { return rng_.pick<int32_t>({FA_F32, FA_F16, FA_BF16}); };
        c.out_dtype = rng_.chance(0.3) ? rng_.pick<int32_t>({FA_E4M3, FA_I8, FA_E2M1, FA_Q4_0, FA_Q8_0}) : number();
        c.x_dtype = c.out_dtype;
        if (rng_.chance(0.3)) c.x_dtype = number(), c.out_dtype = number();
        if (rng_.chance(0.3)) c.x_dtype = number(), c.out_dtype = FA_F32, c.flags = FA_CONVERT_ACCUMULATE;
        int64_t elements = 1;
        EXPECT_EQ(FA_OK, fa_dtype_unit(c.out_dtype, &elements, nullptr));
        for (int i = 0; i < 3; i++) c.size[i] = rng_.chance(0.05) ? 0 : rng_.between(1, 6);
        if (rng_.chance(0.1)) c.size[1] = rng_.between(1, 300);
        const int64_t units = rng_.chance(0.3) ? 1 : rng_.chance(0.5) ? 4 * rng_.between(1, 12) : rng_.between(1, 50);
        c.size[3] = units * elements;
        const bool zeros = c.x_dtype == c.out_dtype && !c.flags && rng_.chance(0.3);
        if (!zeros) c.x = room(&x_, strides(c, units, true, c.x_stride), oracle::size_of(c.x_dtype), scalar_of(c.x_dtype));
        c.out =
            const_cast<void*>(room(&out_, strides(c, units, false, c.out_stride), oracle::size_of(c.out_dtype), scalar_of(c.out_dtype)));
        list_.push_back(c);
    }
    static int64_t scalar_of(int32_t dtype) { return std::min<int64_t>(oracle::size_of(dtype), dtype == FA_F32 ? 4 : 2); }

    void fill(Arena& bytes) {
        for (unsigned char& b : bytes) b = static_cast<unsigned char>(rng_.bits());
    }

    // Calls use(first units of x and of out).
    template <class Use>
    static void each(const fa_conversion_t& conversion, int64_t units, const Use& use) {
        for (int64_t i = 0; i < conversion.size[0]; i++)
            for (int64_t j = 0; j < conversion.size[1]; j++)
                for (int64_t k = 0; k < conversion.size[2]; k++)
                    for (int64_t l = 0; l < units; l++)
                        use(i * conversion.x_stride[0] + j * conversion.x_stride[1] + k * conversion.x_stride[2] + l,
                            i * conversion.out_stride[0] + j * conversion.out_stride[1] + k * conversion.out_stride[2] + l);
    }

    void make_finite(int32_t dtype, const int64_t* stride, const int64_t* size, unsigned char* base) {
        fa_conversion_t c{};
        for (int i = 0; i < 4; i++) c.size[i] = size[i], c.x_stride[i] = stride[i];
        each(c, size[3], [&](int64_t at, int64_t) { oracle::store(base, at, dtype, rng_.chance(0.1) ? -0.0 : rng_.normal()); });
    }

    Arena wanted() {
        Arena out = out_;
        for (const fa_conversion_t& c : list_) {
            int64_t elements = 1, unit = 1;
            EXPECT_EQ(FA_OK, fa_dtype_unit(c.out_dtype, &elements, &unit));
            unsigned char* const to = out.data() + place(c.out);
            const unsigned char* const from = c.x ? x_.data() + place(c.x) : nullptr;
            each(c, c.size[3] / elements, [&](int64_t x, int64_t y) {
                if (!from) memset(to + y * unit, 0, size_t(unit));
                else if (c.flags) oracle::store(to, y, FA_F32, oracle::load(to, y, FA_F32) + oracle::load(from, x, c.x_dtype));
                else if (c.x_dtype == c.out_dtype) memcpy(to + y * unit, from + x * unit, size_t(unit));
                else oracle::store(to, y, c.out_dtype, oracle::load(from, x, c.x_dtype));
            });
        }
        return out;
    }
};

TEST(Convert, AgreesWithLoopsOverElements) {
    const Handle host = make_handle(), device = make_device_handle();
    for (uint64_t seed = 1; seed <= 300; seed++) {
        ASSERT_EQ("", RandomConversions(derive(81, seed)).run(host, false)) << "host, seed " << seed;
        ASSERT_EQ("", RandomConversions(derive(81, seed)).run(device, true)) << "device, seed " << seed;
    }
}

TEST(Convert, CopiesInTheOrderOfTheStream) {
    const Handle device = make_device_handle();
    std::vector<float> values(1000, 1.f), got(1000);
    const DeviceMemory a(device, got.data(), 4000), b(device, got.data(), 4000);
    ASSERT_EQ(FA_OK, fa_copy_async(device, a.data(), values.data(), 4000, 0, nullptr)) << device.error();
    fa_conversion_t sum{a.data(), b.data(), {1, 1, 1, 1000}, {0, 0, 0, 1}, {0, 0, 0, 1}, FA_F32, FA_F32, FA_CONVERT_ACCUMULATE};
    for (int i = 0; i < 3; i++) ASSERT_EQ(FA_OK, fa_convert(device, &sum, 1, FA_ARGS_STREAM, nullptr)) << device.error();
    ASSERT_EQ(FA_OK, fa_copy_async(device, a.data(), b.data(), 4000, 0, nullptr)) << device.error();
    a.read(got.data());
    EXPECT_EQ(got, std::vector<float>(1000, 3.f));
}

}  // namespace
}  // namespace test
