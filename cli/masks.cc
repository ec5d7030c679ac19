#include "masks.h"
#include "options.h"

namespace tool {

void add_mask_options(CLI::App& app, MaskOptions& masks) {
    add_choice(app, "--causal", masks.causal, names_of(kAlignments), "Row i sees no key after its diagonal");
    add_ints(app, "--window", masks.window, "LEFT,RIGHT", "Keys that a row sees on each side of its diagonal; -1: all");
    add_choice(app, "--align", masks.align, names_of(kAlignments), "The diagonal for --window and --alibi without --causal");
    app.add_flag("--alibi", masks.alibi, "Subtract slope · distance from the scores, with the usual slopes");
}

void set_masks(fa_attention_desc_t& desc, const MaskOptions& o) {
    if (!o.causal.empty() && !o.align.empty() && o.causal != o.align)
        misuse("--causal is ", o.causal, " and --align ", o.align, "; expected one alignment");
    const std::string& alignment = o.causal.empty() ? o.align : o.causal;
    // Libraries differ in where the diagonal lies, so none is guessed.
    const char* needs = !o.window.empty() ? "--window" : o.alibi ? "--alibi" : nullptr;
    if (needs && alignment.empty()) misuse(needs, " needs to know where the diagonal lies; give --align top-left or --align bottom-right");
    if (!alignment.empty()) desc.alignment = value_of(kAlignments, alignment);
    if (!o.causal.empty()) desc.flags |= FA_CAUSAL;
    if (!o.window.empty()) {
        if (o.window.size() != 2 || o.window[0] < -1 || o.window[1] < -1)
            misuse("--window has to be LEFT,RIGHT: two numbers of keys, -1 for all of that side");
        desc.flags |= FA_WINDOW;
        desc.window_left = o.window[0];
        desc.window_right = o.window[1];
    }
    if (o.alibi) desc.operands |= FA_OPERAND_ALIBI;
}

}  // namespace tool
