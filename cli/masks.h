// The options that say which keys a row sees, as far as they are the same for every command.
#pragma once
#include <CLI/App.hpp>
#include <string>
#include <vector>
#include "library.h"

namespace tool {

struct MaskOptions {
    std::string causal, align;
    std::vector<int64_t> window;
    bool alibi = false;
    bool any() const { return !causal.empty() || !align.empty() || !window.empty() || alibi; }
};

void add_mask_options(CLI::App& app, MaskOptions& masks);

// Flags, alignment, window and the ALiBi operand; a contradiction is an Error.
void set_masks(fa_attention_desc_t& desc, const MaskOptions& masks);

}  // namespace tool
