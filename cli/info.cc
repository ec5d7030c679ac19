// flashattn info: what the library can do on this machine, and why it cannot do the rest.
#include <algorithm>
#include <iostream>
#include <memory>
#include "commands.h"
#include "json.h"
#include "library.h"
#include "table.h"

namespace tool {
namespace {

Json backends() {
    Json list = Json::array();
    for (const Named& b : kBackends) {
        if (b.value == FA_BACKEND_AUTO) continue;
        char reason[1024] = "";
        const fa_status_t status = fa_backend_status(b.value, reason, sizeof reason);
        list.push_back({{"name", b.name}, {"usable", status == FA_OK}, {"status", fa_status_name(status)}, {"reason", reason}});
    }
    return list;
}

Json isas() {
    const bool cpu = fa_backend_status(FA_BACKEND_CPU, nullptr, 0) == FA_OK;
    const std::vector<int32_t> usable = cpu ? usable_isas() : std::vector<int32_t>();
    Json list = Json::array();
    for (const Named& isa : kIsas)
        list.push_back({{"name", isa.name}, {"usable", std::find(usable.begin(), usable.end(), isa.value) != usable.end()}});
    return list;
}

Json parameters() {
    Json list = Json::array();
    for (int32_t key = FA_PARAM_THREADS; key < 2 * FA_STAT_TILE_ROWS; ++key) {  // parameters count from 1, figures from 100
        if (!fa_param_name(key)) continue;
        int64_t min = 0, max = 0, value = 0;
        if (fa_param_bounds(key, &min, &max, &value) != FA_OK) fail(fa_last_error(nullptr));
        list.push_back({{"key", key},
                        {"name", fa_param_name(key)},
                        {"figure", key >= FA_STAT_TILE_ROWS},
                        {"min", min},
                        {"max", max},
                        {"default", value},
                        {"doc", fa_param_doc(key)}});
    }
    return list;
}

// Calls that people make, for which each backend says how it would run them.
std::vector<std::pair<std::string, fa_attention_desc_t>> typical() {
    const auto call = [](int32_t dtype, int64_t rows, int64_t keys, int64_t dim, bool causal) {
        fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
        d.q_dtype = dtype;
        d.batch = 2;
        d.heads_q = 32;
        d.heads_k = 8;
        d.seqlen_q = rows;
        d.seqlen_k = keys;
        d.dim_qk = dim;
        d.flags = causal ? FA_CAUSAL : 0;
        d.alignment = causal ? FA_ALIGN_BOTTOM_RIGHT : FA_ALIGN_UNSET;
        return d;
    };
    fa_attention_desc_t paged = call(FA_BF16, 1, 4096, 128, false);
    paged.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K;
    paged.page_size = 16;
    paged.num_pages = 512;
    fa_attention_desc_t standard = call(FA_F32, 2048, 2048, 64, false), flash1 = standard;
    standard.algorithm = FA_ALGORITHM_STANDARD;
    flash1.algorithm = FA_ALGORITHM_FLASH1;
    return {{"f32, 2048 rows, dim 64", call(FA_F32, 2048, 2048, 64, false)},
            {"f16 causal, 2048 rows, dim 128", call(FA_F16, 2048, 2048, 128, true)},
            {"bf16 causal, 2048 rows, dim 128", call(FA_BF16, 2048, 2048, 128, true)},
            {"e4m3 causal, 2048 rows, dim 128", call(FA_E4M3, 2048, 2048, 128, true)},
            {"bf16 decoding, 4096 keys, dim 128", call(FA_BF16, 1, 4096, 128, true)},
            {"bf16 decoding, 4096 keys in pages of 16", paged},
            {"f32 standard (study)", standard},
            {"f32 flash1 (study)", flash1}};
}

// A device may be there and yet refuse to work: its kernels' row says why.
std::unique_ptr<Handle> open_handle(int32_t backend, Json& list) {
    try {
        return std::make_unique<Handle>(backend);
    } catch (const Error& e) {
        list.push_back({{"backend", name_of(kBackends, backend)}, {"call", "any"}, {"status", "no handle"}, {"reason", e.what()}});
        return nullptr;
    }
}

Json kernels() {
    Json list = Json::array();
    for (int32_t backend : usable_backends()) {
        const std::unique_ptr<Handle> opened = open_handle(backend, list);
        if (!opened) continue;
        const Handle& handle = *opened;
        for (const auto& [call, desc] : typical()) {
            char text[4096] = "";
            const fa_status_t status = fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text);
            Json row = {{"backend", name_of(kBackends, backend)}, {"call", call}, {"status", fa_status_name(status)}};
            if (status == FA_OK) row["kernel"] = kernel_of(handle, desc, FA_OP_FORWARD);
            else row["reason"] = text;
            list.push_back(row);
        }
    }
    return list;
}

Json collect() {
    Json info = report_of("info");
    info.update({{"header_version", version_text(FA_VERSION_MAJOR * 10000 + FA_VERSION_MINOR * 100 + FA_VERSION_PATCH)},
                 {"backends", backends()},
                 {"devices", devices_of(usable_backends())},
                 {"instruction_sets", isas()},
                 {"parameters", parameters()},
                 {"kernels", kernels()}});
    return info;
}

void print(const Json& info) {
    const auto text = [](const Json& value) { return value.get<std::string>(); };
    std::cout << "flashattn " << text(info["version"]) << "\n\n";
    Table backends({"backend", "usable", "why"}, 3);
    for (const Json& b : info["backends"]) backends.add({text(b["name"]), b["usable"] ? "yes" : "no", text(b["reason"])});
    backends.print(std::cout);

    std::cout << "\n";
    Table devices({"device", "name", "architecture", "units", "memory"}, 3);
    for (const Json& d : info["devices"])
        devices.add({text_of(text(d["backend"]), " ", d["device"]), text(d["name"]), text(d["arch"]), d["compute_units"].dump(),
                     engineering(d["memory_bytes"], "B")});
    devices.print(std::cout);

    std::cout << "\ninstruction sets of the CPU backend:";
    for (const Json& isa : info["instruction_sets"]) std::cout << " " << text(isa["name"]) << (isa["usable"] ? " (yes)" : " (no)");
    std::cout << "\n\n";
    Table parameters({"parameter", "bounds", "default", "meaning"}, 4);
    for (const Json& p : info["parameters"])
        if (!p["figure"]) parameters.add({text(p["name"]), text_of(p["min"], " … ", p["max"]), p["default"].dump(), text(p["doc"])});
    parameters.print(std::cout);

    std::cout << "\n";
    Table kernels({"call", "how it would run"}, 2);
    for (const Json& k : info["kernels"])
        kernels.add({text(k["call"]), text(k.contains("kernel") ? k["kernel"]["explanation"] : k["reason"])});
    kernels.print(std::cout);
}

}  // namespace

void add_info(CLI::App& app) {
    const auto json = std::make_shared<bool>(false);
    CLI::App& c = *app.add_subcommand("info", "Print backends, devices, instruction sets, parameters and kernels");
    c.add_flag("--json", *json, "Print JSON");
    c.callback([json] {
        const Json info = collect();
        if (*json) print_json(info);
        else print(info);
    });
}

}  // namespace tool
