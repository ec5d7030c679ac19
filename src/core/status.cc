#include <flashattn.h>

namespace {

struct Name {
    fa_status_t status;
    const char* text;
};

constexpr Name kNames[] = {
    {FA_OK, "FA_OK"},
    {FA_INVALID_ARGUMENT, "FA_INVALID_ARGUMENT"},
    {FA_UNSUPPORTED_FIELD, "FA_UNSUPPORTED_FIELD"},
    {FA_UNSUPPORTED, "FA_UNSUPPORTED"},
    {FA_OUT_OF_MEMORY, "FA_OUT_OF_MEMORY"},
    {FA_WORKSPACE_TOO_SMALL, "FA_WORKSPACE_TOO_SMALL"},
    {FA_NO_DEVICE, "FA_NO_DEVICE"},
    {FA_BACKEND_MISSING, "FA_BACKEND_MISSING"},
    {FA_BACKEND_INCOMPATIBLE, "FA_BACKEND_INCOMPATIBLE"},
    {FA_DEVICE_ERROR, "FA_DEVICE_ERROR"},
    {FA_INVALID_STATE, "FA_INVALID_STATE"},
    {FA_TIMEOUT, "FA_TIMEOUT"},
    {FA_PEER_FAILED, "FA_PEER_FAILED"},
    {FA_PEERS_DISAGREE, "FA_PEERS_DISAGREE"},
    {FA_INTERNAL, "FA_INTERNAL"},
};

}  // namespace

const char* fa_status_name(fa_status_t status) {
    for (const Name& name : kNames)
        if (name.status == status) return name.text;
    return "unknown status";
}
