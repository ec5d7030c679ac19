#include "json.h"
#include <iostream>

namespace tool {
namespace {

constexpr int kSchema = 1;  // raised when a field goes or means something else; new ones may come at any time

// In every explanation of a call the kernel's name follows this word.
std::string kernel_name(const std::string& explanation) {
    const std::string word = "kernel ";
    const size_t at = explanation.find(word);
    if (at == std::string::npos) return "";
    const size_t begin = at + word.size();
    return explanation.substr(begin, explanation.find_first_of(" ,;", begin) - begin);
}

}  // namespace

Json report_of(const char* command) { return {{"command", command}, {"schema", kSchema}, {"version", version_text(fa_version())}}; }

void print_json(const Json& json) {  // a path or a driver's message may hold bytes that are no UTF-8
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

Json devices_of(const std::vector<int32_t>& backends) {
    Json list = Json::array();
    for (const int32_t backend : backends) {
        int32_t count = 0;
        if (fa_device_count(backend, &count) != FA_OK) continue;
        for (int32_t device = 0; device < count; ++device) {
            fa_device_info_t info{};
            info.struct_size = sizeof info;
            if (fa_device_info(backend, device, &info) != FA_OK) fail(fa_last_error(nullptr));
            list.push_back({{"backend", name_of(kBackends, backend)},
                            {"device", device},
                            {"name", info.name},
                            {"arch", info.arch},
                            {"compute_units", info.compute_units},
                            {"memory_bytes", info.memory_bytes}});
        }
    }
    return list;
}

Json kernel_of(const Handle& handle, const fa_attention_desc_t& desc, int32_t op) {
    uint64_t workspace = 0;
    handle.check(fa_workspace_size(handle, &desc, op, &workspace));
    const std::string explanation = handle.explain(&desc, op);
    return {{"name", kernel_name(explanation)}, {"workspace_bytes", workspace}, {"explanation", explanation}};
}

}  // namespace tool
