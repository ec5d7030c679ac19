#include "library.h"
#include <cctype>
#include <cstdlib>
#include <iostream>

namespace tool {
namespace {

const std::vector<Named> kLogLevels = {{"error", FA_LOG_ERROR}, {"info", FA_LOG_INFO}, {"debug", FA_LOG_DEBUG}};

void log_to_stderr(void*, int32_t level, const char* message) {
    std::cerr << "flashattn: " << name_of(kLogLevels, level) << ": " << message << "\n";
}

bool has_log_file() {
    const char* const path = std::getenv("FLASHATTN_LOG_FILE");
    return path && *path;
}

}  // namespace

const std::vector<Named> kBackends = {
    {"auto", FA_BACKEND_AUTO}, {"cpu", FA_BACKEND_CPU}, {"cuda", FA_BACKEND_CUDA}, {"hip", FA_BACKEND_HIP}};
const std::vector<Named> kDtypes = {{"f32", FA_F32},   {"f16", FA_F16},   {"bf16", FA_BF16},
                                    {"e4m3", FA_E4M3}, {"e5m2", FA_E5M2}, {"i8", FA_I8}};
const std::vector<Named> kBlockTypes = {{"q8_0", FA_Q8_0}, {"q5_1", FA_Q5_1}, {"q5_0", FA_Q5_0}, {"q4_1", FA_Q4_1}, {"q4_0", FA_Q4_0}};
const std::vector<Named> kAlgorithms = {
    {"standard", FA_ALGORITHM_STANDARD}, {"flash1", FA_ALGORITHM_FLASH1}, {"flash", FA_ALGORITHM_FLASH}};
const std::vector<Named> kPrecisions = {{"default", FA_PRECISION_DEFAULT}, {"native", FA_PRECISION_NATIVE}};
const std::vector<Named> kAlignments = {{"top-left", FA_ALIGN_TOP_LEFT}, {"bottom-right", FA_ALIGN_BOTTOM_RIGHT}};
const std::vector<Named> kIsas = [] {
    std::vector<Named> all;
    for (int32_t isa = 1; isa < 256; ++isa)
        if (const char* name = fa_isa_name(isa)) all.push_back({name, isa});
    return all;
}();

// f16 and bf16 are kinds of --dtype.
const CacheScheme kCacheSchemes[] = {
    {"q8_0", FA_Q8_0, 0, 0, false},         {"q5_1", FA_Q5_1, 0, 0, false},         {"q5_0", FA_Q5_0, 0, 0, false},
    {"q4_1", FA_Q4_1, 0, 0, false},         {"q4_0", FA_Q4_0, 0, 0, false},         {"i8", FA_I8, FA_F32, 0, false},
    {"e4m3", FA_E4M3, FA_F32, 0, false},    {"e5m2", FA_E5M2, FA_F32, 0, false},    {"mxfp8", FA_E4M3, FA_E8M0, 32, false},
    {"mxfp4", FA_E2M1, FA_E8M0, 32, false}, {"nvfp4", FA_E2M1, FA_E4M3, 16, false}, {"i4", FA_I4, FA_F16, 32, false},
    {"u4", FA_U4, FA_F16, 32, true}};

const CacheScheme& cache_scheme(const std::string& name) {
    for (const CacheScheme& scheme : kCacheSchemes)
        if (name == scheme.name) return scheme;
    fail("unknown name '", name, "'");
}

std::vector<std::string> cache_scheme_names() {
    std::vector<std::string> list;
    for (const CacheScheme& scheme : kCacheSchemes) list.emplace_back(scheme.name);
    return list;
}

std::vector<Named> cache_types() {
    std::vector<Named> all = kDtypes;
    all.insert(all.end(), kBlockTypes.begin(), kBlockTypes.end());
    return all;
}

int32_t value_of(const std::vector<Named>& names, const std::string& name) {
    for (const Named& n : names)
        if (name == n.name) return n.value;
    fail("unknown name '", name, "'");
}

std::string name_of(const std::vector<Named>& names, int32_t value) {
    for (const Named& n : names)
        if (value == n.value) return n.name;
    return std::to_string(value);
}

std::vector<std::string> names_of(const std::vector<Named>& names) {
    std::vector<std::string> list;
    for (const Named& n : names) list.emplace_back(n.name);
    return list;
}

std::string version_text(int32_t v) { return text_of(v / 10000, ".", v / 100 % 100, ".", v % 100); }

std::string shown(std::string word) {
    constexpr size_t kLongest = 40;
    const bool cut = word.size() > kLongest;
    if (cut) word.resize(kLongest);
    for (char& c : word)
        if (!std::isprint(static_cast<unsigned char>(c))) c = '?';
    return "'" + word + (cut ? "…'" : "'");
}

Handle::Handle(int32_t backend, int32_t memory) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.memory = memory;
    if (!has_log_file()) info.log = log_to_stderr;  // without a callback the library writes that file
    if (fa_create(&handle_, &info) != FA_OK) fail(fa_last_error(nullptr));
}

void Handle::check(fa_status_t status) const {
    if (status == FA_OK) return;
    const std::string sentence = fa_last_error(handle_);
    fail(sentence.empty() ? fa_status_name(status) : sentence);
}

int64_t Handle::get(int32_t key) const {
    int64_t value = 0;
    check(fa_param_get(handle_, key, &value));
    return value;
}

int32_t Handle::backend() const { return int32_t(get(FA_INFO_BACKEND)); }

std::string Handle::explain(const fa_attention_desc_t* desc, int32_t op) const {
    char text[4096] = "";
    check(fa_explain(handle_, desc, op, text, sizeof text));
    return text;
}

std::vector<int32_t> usable_backends() {
    std::vector<int32_t> list;
    for (const Named& b : kBackends)
        if (b.value != FA_BACKEND_AUTO && fa_backend_status(b.value, nullptr, 0) == FA_OK) list.push_back(b.value);
    return list;
}

std::vector<int32_t> usable_isas() {
    const Handle cpu(FA_BACKEND_CPU);
    std::vector<int32_t> list;
    for (const Named& isa : kIsas)
        if (fa_param_set(cpu, FA_PARAM_MAX_ISA, isa.value) == FA_OK) list.push_back(isa.value);
    return list;
}

}  // namespace tool
