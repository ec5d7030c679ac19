/* Prints the kernels that the library chooses for this CPU. */
#include <flashattn.h>
#include <stdio.h>

int main(void) {
    fa_device_info_t info = {.struct_size = sizeof info};
    const fa_status_t status = fa_device_info(FA_BACKEND_CPU, 0, &info);
    printf("chosen: %s\n", status == FA_OK ? info.arch : fa_last_error(NULL));
    return status != FA_OK;
}
