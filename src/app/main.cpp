#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "vlmtrain/app/run.h"

int main(int argc, char** argv) {
  const int exit_code = vlmtrain::app::run_program({argv + 1, argv + argc});
#ifdef __SANITIZE_ADDRESS__
  return exit_code;  // LeakSanitizer reports when the process exits normally.
#else
  // Skips the destructors of LibTorch's global objects, which take 0.1 s.
  std::cout.flush();
  std::fflush(nullptr);
  _exit(exit_code);
#endif
}
