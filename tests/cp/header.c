/* Compiling is the test: C99 without extensions, and no padding in what an ABI freezes. */
#include <flashattn_cp.h>

typedef char frozen_transport[sizeof(fa_cp_transport_t) == 88 ? 1 : -1];
typedef char frozen_message[sizeof(fa_cp_message_t) == 32 ? 1 : -1];
typedef char frozen_info[sizeof(fa_cp_create_info_t) == 48 ? 1 : -1];
typedef char frozen_desc[sizeof(fa_cp_desc_t) == 32 ? 1 : -1];
typedef char frozen_range[sizeof(fa_cp_range_t) == 32 ? 1 : -1];

extern const fa_cp_desc_t every_field;
const fa_cp_desc_t every_field = FA_CP_DESC_INIT;
extern const fa_cp_transport_t every_function;
const fa_cp_transport_t every_function = FA_CP_TRANSPORT_INIT;
extern const fa_cp_create_info_t every_choice;
const fa_cp_create_info_t every_choice = FA_CP_CREATE_INFO_INIT;
