// Functions that need no handle and no backend.
#include <float.h>
#include <math.h>
#include "backend/isa.h"
#include "backend/thread_state.h"
#include "core/handle.h"
#include "spec/random.h"

namespace fa {
namespace {

constexpr int64_t kIndexEnd = int64_t(1) << 31;  // rows and keys fill one 32-bit counter word each; sizes go no further

fa_status_t check_range(const char* begin_name, int64_t begin, const char* count_name, int64_t count, Message* message) {
    if (begin < 0 || begin > kIndexEnd)
        return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected 0 to 2^31", begin_name, (long long)begin);
    if (count < 0 || count > kIndexEnd - begin)
        return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected 0 to %lld, since %s + %s may reach 2^31", count_name,
                    (long long)count, (long long)(kIndexEnd - begin), begin_name, count_name);
    return FA_OK;
}

}  // namespace
}  // namespace fa

int32_t fa_version(void) { return FA_VERSION; }

const char* fa_isa_name(int32_t isa) {
    for (const fa::Word& w : fa::kIsaWords)
        if (w.value == isa) return w.text;
    return nullptr;
}

fa_status_t fa_dropout_mask(float p, uint64_t seed, uint64_t offset, int64_t batch_head, int64_t row, int64_t rows, int64_t key,
                            int64_t keys, uint8_t* keep) {
    const fa::InLibrary here;
    fa::Message* m = fa::thread_message();
    if (!(p >= 0.f && p < 1.f)) return fail(m, FA_INVALID_ARGUMENT, "p is %g: expected at least 0 and below 1", double(p));
    if (batch_head < 0) return fail(m, FA_INVALID_ARGUMENT, "batch_head is %lld: expected 0 or more", (long long)batch_head);
    fa_status_t status = fa::check_range("row", row, "rows", rows, m);
    if (status == FA_OK) status = fa::check_range("key", key, "keys", keys, m);
    if (status != FA_OK) return status;
    if (rows == 0 || keys == 0) return FA_OK;
    if (keep == nullptr) return fail(m, FA_INVALID_ARGUMENT, "keep is NULL: expected room for rows * keys bytes");

    const fa::Dropout dropout = fa::make_dropout(p, seed, offset);
    for (int64_t r = 0; r < rows; r++) {
        fa::Philox4 words{};
        for (int64_t c = 0; c < keys; c++) {
            const int64_t j = key + c;
            if (c == 0 || (j & 3) == 0) words = fa::dropout_words(dropout, batch_head, row + r, j >> 2);
            keep[r * keys + c] = words.word[j & 3] >= dropout.threshold;
        }
    }
    return FA_OK;
}

fa_status_t fa_alibi_slopes(int64_t heads, float max_bias, float* slopes) {
    const fa::InLibrary here;
    fa::Message* m = fa::thread_message();
    if (heads < 0 || heads >= fa::kIndexEnd) return fail(m, FA_INVALID_ARGUMENT, "heads is %lld: expected 0 to 2^31 - 1", (long long)heads);
    if (heads > 0 && slopes == nullptr) return fail(m, FA_INVALID_ARGUMENT, "slopes is NULL: expected room for heads values");
    if (!(max_bias >= 0.f && max_bias <= FLT_MAX))
        return fail(m, FA_INVALID_ARGUMENT, "max_bias is %g: expected a finite number, 0 or more", double(max_bias));
    const double most = max_bias == 0.f ? 8.0 : double(max_bias);
    int64_t power = 1;
    while (power * 2 <= heads) power *= 2;
    for (int64_t h = 0; h < heads; h++) {
        const double exponent = h < power ? double(h + 1) / double(power) : double(2 * (h - power) + 1) / double(2 * power);
        slopes[h] = float(exp2(-most * exponent));
    }
    return FA_OK;
}
