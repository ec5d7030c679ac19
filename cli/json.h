// JSON on standard output, in the order in which it was put together.
#pragma once
#include <iostream>
#include <nlohmann/json.hpp>

namespace tool {

using Json = nlohmann::ordered_json;

inline void print_json(const Json& json) {  // a path or a driver's message may hold bytes that are no UTF-8
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace tool
