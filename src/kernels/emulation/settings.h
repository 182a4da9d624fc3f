#pragma once

#include <cstdint>
#include <limits>

#include "kernels/emulation/fibers.h"

namespace vlmtrain::kernels::emulation {

/// What tests may choose; libvlmtrain_kernels_emulated.so has one, at vlmtrain_emulation_settings().
struct Settings {
  Order order = Order::kForwards;
  uint64_t seed = 1;  ///< of kShuffled
  /// Of a grid's first dimension only so many blocks run, the last: for tensors larger than a test could fill.
  int64_t last_blocks = std::numeric_limits<int64_t>::max();
};

Settings& settings();

inline constexpr const char* kSettingsFunction = "vlmtrain_emulation_settings";

}  // namespace vlmtrain::kernels::emulation
