#pragma once

#include <chrono>

#include "vlmtrain/distributed/launch.h"

namespace vlmtrain::distributed {

/// Whether anybody takes connections where rank 0 should be, asked for again and again until `timeout`. c10d's own
/// store asks for up to three times as long as it is told to.
bool wait_until_listening(const Launch& launch, std::chrono::milliseconds timeout);

}  // namespace vlmtrain::distributed
