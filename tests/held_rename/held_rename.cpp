// Preloaded: holds the rename that makes a checkpoint whole, checkpoints/step-N, as long as there is a file hold-step-N
// in the working directory, and says so by a file held-step-N.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <string_view>

extern "C" int rename(const char* from, const char* to) {
  using Rename = int (*)(const char*, const char*);
  static const auto real = reinterpret_cast<Rename>(dlsym(RTLD_NEXT, "rename"));
  const std::string_view target(to);
  const std::string_view name = target.substr(target.rfind('/') + 1);
  if (name.starts_with("step-")) {
    const std::string hold_file = "hold-" + std::string(name), held_file = "held-" + std::string(name);
    constexpr useconds_t kMillisecond = 1000;
    constexpr mode_t kMode = 0600;
    if (access(hold_file.c_str(), F_OK) == 0) close(creat(held_file.c_str(), kMode));
    while (access(hold_file.c_str(), F_OK) == 0) usleep(kMillisecond);
  }
  return real(from, to);
}
