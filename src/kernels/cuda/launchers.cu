#include "kernels/cuda/primitives.h"

extern "C" [[gnu::visibility("default")]] int vlmtrain_kernels_version() {
  return VLMTRAIN_KERNELS_VERSION;
}

extern "C" [[gnu::visibility("default")]] const vlmtrain::kernels::Launchers* vlmtrain_kernels() {
  using namespace vlmtrain::kernels;
  static constexpr Launchers kLaunchers{
#define VLMTRAIN_ENTRY_POINT(function, Args) .function = function,
      VLMTRAIN_KERNEL_TABLE(VLMTRAIN_SKIP, VLMTRAIN_ENTRY_POINT)
#undef VLMTRAIN_ENTRY_POINT
  };
  return &kLaunchers;
}
