#include <dlfcn.h>

#include "vlmtrain/kernels/launchers.h"

// The emulated kernels with a gated activation whose first value is wrong, as on a GPU that
// computes differently.

using namespace vlmtrain::kernels;

namespace {

void* find_emulated_symbol(const char* name) {
  static void* const library = dlopen(VLMTRAIN_EMULATED_KERNELS, RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}

const Launchers& get_emulated_launchers() {
  static const Launchers* const launchers =
      reinterpret_cast<GetLaunchersFunction*>(find_emulated_symbol(kGetLaunchersSymbol))();
  return *launchers;
}

int wrong_gated_activation(const GatedActivationForwardArgs& args, void* stream) {
  const int error = get_emulated_launchers().gated_activation_forward(args, stream);
  if (args.element == ElementType::kFloat) *static_cast<float*>(args.value) += 0.01F;
  return error;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int vlmtrain_kernels_version() {
  return reinterpret_cast<KernelsVersionFunction*>(find_emulated_symbol(kKernelsVersionSymbol))();
}

extern "C" [[gnu::visibility("default")]] const Launchers* vlmtrain_kernels() {
  static const Launchers launchers = [] {
    Launchers copy = get_emulated_launchers();
    copy.gated_activation_forward = wrong_gated_activation;
    return copy;
  }();
  return &launchers;
}
