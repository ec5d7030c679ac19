#include <string.h>
#include "core/check.h"
#include "core/rules.h"

namespace fa {

fa_status_t check_struct_size(uint32_t given, uint32_t first, const char* name, Message* message) {
    if (given >= first && given <= kLargestStruct) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "struct_size of %s is %u: expected %u to %u; set it with the _INIT macro", name, given, first,
                kLargestStruct);
}

fa_status_t read_struct_size(const void* user, uint32_t first, const char* name, uint32_t* size, Message* message) {
    if (!user) return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a struct", name);
    memcpy(size, user, sizeof *size);
    return check_struct_size(*size, first, name, message);
}

fa_status_t import_bytes(void* to, const void* user, uint32_t size, uint32_t first, const char* name, Message* message) {
    uint32_t given = 0;
    FA_TRY(read_struct_size(user, first, name, &given, message));
    const unsigned char* bytes = static_cast<const unsigned char*>(user);
    for (uint32_t i = size; i < given; i++) {
        if (bytes[i] != 0) {
            return fail(message, FA_UNSUPPORTED_FIELD,
                        "struct_size of %s is %u and byte %u is %u: this library knows %u bytes, expected "
                        "zeros after them",
                        name, given, i, bytes[i], size);
        }
    }
    memset(to, 0, size);
    memcpy(to, user, given < size ? given : size);
    memcpy(to, &size, sizeof size);
    return FA_OK;
}

}  // namespace fa
