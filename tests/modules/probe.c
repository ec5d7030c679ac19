/* Tells what fa_create makes of this process's environment. Usage: probe BACKEND [BACKEND_DIR [no-callback]]; "": no folder. */
#include <flashattn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

static void print_line(void* user, int32_t level, const char* message) {
    (void)user;
    printf("log %d: %s\n", (int)level, message);
}

int main(int argc, char** argv) {
    char text[2048] = "";
    int64_t backend = 0;
    int64_t max_isa = 0;
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    fa_status_t status;
    if (argc < 2) return 2;
    info.backend = atoi(argv[1]);
    info.backend_dir = argc > 2 && argv[2][0] ? argv[2] : NULL;
    info.log = argc > 3 ? NULL : print_line;

    status = fa_backend_status(info.backend, text, sizeof text);
    printf("status: %s: %s\n", fa_status_name(status), text);
    status = fa_create(&handle, &info);
    printf("create: %s: %s\n", fa_status_name(status), fa_last_error(NULL));
    printf("secure: %lu\n", getauxval(AT_SECURE));
    if (status != FA_OK) return 0;
    fa_param_get(handle, FA_INFO_BACKEND, &backend);
    fa_param_get(handle, FA_PARAM_MAX_ISA, &max_isa);
    fa_explain(handle, NULL, 0, text, sizeof text);
    printf("backend: %d\nmax_isa: %d\nexplain: %s\n", (int)backend, (int)max_isa, text);
    if (fa_destroy(handle) != FA_OK) return 1;
    status = fa_create(&handle, &info);
    printf("again: %s\n", fa_status_name(status));
    return fa_destroy(handle) == FA_OK ? 0 : 1;
}
