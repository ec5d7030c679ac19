// Compiling is the test.
#include <flashattn.hpp>

#ifdef FLASHATTN_NO_EXCEPTIONS
fa_status_t uses_the_header() { return flashattn::Handle::create().status().code(); }
#else
fa_status_t uses_the_header() { return flashattn::Handle().supports({}, FA_OP_FORWARD).code(); }
#endif
