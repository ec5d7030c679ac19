/* The header by itself, with every initialiser spelt out: C99 and C11. */
#include <flashattn.h>

const fa_create_info_t info = FA_CREATE_INFO_INIT;
const fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
const fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
const fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
const fa_merge_args_t merge = FA_MERGE_ARGS_INIT;
const fa_rotary_args_t rotary = FA_ROTARY_ARGS_INIT;
const fa_append_kv_args_t append_kv = FA_APPEND_KV_ARGS_INIT;
