// Compiling is the test.
#include <flashattn.hpp>

#ifdef FLASHATTN_NO_EXCEPTIONS
fa_status_t uses_the_header() { return flashattn::Handle::create().status().code(); }
#else
fa_status_t uses_the_header() { return flashattn::Handle().supports({}, FA_OP_FORWARD).code(); }
#endif

#if __cplusplus >= 202002L
// As the header's comment has it. Fields that are left out are 0, which -Wextra takes for forgotten.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
int64_t heads_by_name() {
    flashattn::Attention a = fa_attention_desc_t{.struct_size = sizeof(fa_attention_desc_t), .batch = 1, .heads_q = 4};
    return a.batch * a.heads_q;
}
#endif
