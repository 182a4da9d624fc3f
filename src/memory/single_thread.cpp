#include "vlmtrain/memory/single_thread.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace vlmtrain::memory {

// An ATen operation above its grain size starts an OpenMP team in whichever thread calls it: N workers would have N
// teams, each as large as the machine. at::set_num_threads(1) would also hold for threads that start later, such as the
// engine's, so the limit is set for this thread alone, in the OpenMP runtime that LibTorch brings along.
void use_single_aten_thread() {
  at::get_num_threads();  // LibTorch sets a thread up at its first use, which would lift the limit later
  using SetNumThreads = void (*)(int);
  const auto set_num_threads = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_num_threads != nullptr) set_num_threads(1);
}

}  // namespace vlmtrain::memory
