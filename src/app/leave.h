#pragma once

#include <string_view>

namespace vlmtrain::app {

/// From here on signals that ask for a stop end the process at once, without a file half written: `train` with kStopped
/// until its steps begin (train/stop_request.h), the other commands as the signal itself would.
void exit_on_signal(std::string_view command);

}  // namespace vlmtrain::app
