#include "masks.h"
#include "options.h"

namespace tool {

void add_mask_options(CLI::App& app, MaskOptions& masks) {
    add_choice(app, "--causal", masks.causal, names_of(kAlignments), "Row i sees no key after its diagonal");
    add_ints(app, "--window", masks.window, "LEFT,RIGHT", "Keys that a row sees on each side of its diagonal; -1: all");
    add_choice(app, "--align", masks.align, names_of(kAlignments), "The diagonal for --window and --alibi without --causal");
    app.add_flag("--alibi", masks.alibi, "Subtract slope · distance from the scores, with the usual slopes");
}

void set_masks(fa_attention_desc_t& desc, const MaskOptions& options) {
    if (!options.causal.empty() && !options.align.empty() && options.causal != options.align)
        misuse("--causal is ", options.causal, " and --align ", options.align, "; expected one alignment");
    const std::string& alignment = options.causal.empty() ? options.align : options.causal;
    // Libraries differ in where the diagonal lies, so none is guessed.
    const char* needs = !options.window.empty() ? "--window" : options.alibi ? "--alibi" : nullptr;
    if (needs && alignment.empty()) misuse(needs, " needs to know where the diagonal lies; give --align top-left or --align bottom-right");
    if (!alignment.empty()) desc.alignment = value_of(kAlignments, alignment);
    if (!options.causal.empty()) desc.flags |= FA_CAUSAL;
    if (!options.window.empty()) {
        if (options.window.size() != 2 || options.window[0] < -1 || options.window[1] < -1)
            misuse("--window has to be LEFT,RIGHT: two numbers of keys, -1 for all of that side");
        desc.flags |= FA_WINDOW;
        desc.window_left = options.window[0];
        desc.window_right = options.window[1];
    }
    if (options.alibi) desc.operands |= FA_OPERAND_ALIBI;
}

}  // namespace tool
