#include "distributed/thread_ranks.h"
