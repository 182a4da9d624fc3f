#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/memory/libtorch.h"

namespace vlmtrain::app {

Section examine_libraries(const DoctorContext& context) {
  return examine_in_subprocess(
      {.name = "libtorch", .activity = "looking at LibTorch's libraries", .on_failure = Severity::kWarn},
      [&](Section& section) {
        const auto libtorch = memory::describe_libtorch();
        section.facts = {
            {"compiled_for", libtorch.compiled_version},      {"loaded", libtorch.loaded_version},
            {"cpu_library", libtorch.cpu_library.string()},   {"core_library", libtorch.core_library.string()},
            {"cuda_library", libtorch.cuda_library.string()}, {"found_by", memory::to_string(libtorch.source)}};
        const std::string location = fmt::format("{}, found by {}", libtorch.cpu_library.parent_path().string(),
                                                 memory::to_string(libtorch.source));
        if (!libtorch.matches_compiled_version()) {
          section.fail(
              fmt::format("LibTorch {} is loaded from {}, and this program is compiled for {}: take that "
                          "folder out of the path",
                          libtorch.loaded_version, location, libtorch.compiled_version));
        } else {
          section.ok(fmt::format("LibTorch {} in {}{}", libtorch.compiled_version, location,
                                 libtorch.cuda_library.empty() ? "" : "; its CUDA library lies beside it"));
        }
        if (libtorch.cpu_library.parent_path() != libtorch.core_library.parent_path()) {
          section.warn(fmt::format("libc10.so is another folder's: {}; two LibTorch are mixed",
                                   libtorch.core_library.parent_path().string()));
        }
        if (!libtorch.cuda_library.empty()) return;
        const bool is_gpu_requested = context.device.starts_with("cuda") || context.is_virtual();
        section.add(
            is_gpu_requested ? Severity::kFail : Severity::kWarn,
            fmt::format("there is no libtorch_cuda.so beside libtorch_cpu.so, so no GPU can be used and nothing "
                        "planned; install LibTorch with CUDA (pip install --force-reinstall torch=={}, or "
                        "scripts/setup.sh for what was built here)",
                        libtorch.compiled_version));
      });
}

}  // namespace vlmtrain::app
