#include <pthread.h>
#include "os/environment.h"

namespace fa {
namespace os {

void once(void (*function)()) {
    static pthread_once_t done = PTHREAD_ONCE_INIT;
    pthread_once(&done, function);
}

}  // namespace os
}  // namespace fa
