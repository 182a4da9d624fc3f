#pragma once

namespace vlmtrain::memory {

/// While it lives, no limit and no count hears of the memory that this thread takes on the CPU: that of a call which
/// must not fail here alone, since other processes have made it as well.
class ScopedDisableTracking {
 public:
  ScopedDisableTracking();
  ~ScopedDisableTracking();
  ScopedDisableTracking(const ScopedDisableTracking&) = delete;
  ScopedDisableTracking& operator=(const ScopedDisableTracking&) = delete;
};

}  // namespace vlmtrain::memory
