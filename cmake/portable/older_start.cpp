// From 2.34 on, glibc runs a program's initializers; before, the program itself does. Both call a given function for
// them.

extern "C" {

using Main = int (*)(int, char**, char**);
using Initialiser = void (*)(int, char**, char**);
extern __attribute__((visibility("hidden"))) Initialiser __init_array_start[], __init_array_end[];
void _init();

int older_libc_start_main(Main, int, char**, Initialiser, void (*)(), void (*)(), void*);
__asm__(".symver older_libc_start_main, __libc_start_main@GLIBC_2.2.5");

static void initialise(int count, char** arguments, char** environment) {
  _init();
  for (Initialiser* each = __init_array_start; each != __init_array_end; ++each) (*each)(count, arguments, environment);
}

int __wrap___libc_start_main(Main main, int count, char** arguments, Initialiser, void (*)(), void (*loaders_end)(),
                             void* stack_end) {
  return older_libc_start_main(main, count, arguments, initialise, nullptr, loaders_end, stack_end);
}

}  // extern "C"
