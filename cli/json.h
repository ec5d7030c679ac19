// What --json prints: fields in the order in which they were put in. docs/reference/json.md lists them all.
#pragma once
#include <nlohmann/json.hpp>
#include "library.h"

namespace tool {

using Json = nlohmann::ordered_json;

Json report_of(const char* command);  // what every report begins with
void print_json(const Json& json);

Json devices_of(const std::vector<int32_t>& backends);
Json kernel_of(const Handle& handle, const fa_attention_desc_t& desc, int32_t op);  // which serves a call

}  // namespace tool
