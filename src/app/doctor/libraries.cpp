#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/memory/libtorch.h"

namespace vlmtrain::app {

Section examine_libraries(const Question& question) {
  return examine_apart(
      {.name = "libtorch", .doing = "looking at LibTorch's libraries", .on_failure = Severity::kNote},
      [&](Section& section) {
        const auto found = memory::libtorch();
        section.facts = {{"compiled_for", found.compiled_for},          {"loaded", found.loaded},
                         {"cpu_library", found.cpu_library.string()},   {"core_library", found.core_library.string()},
                         {"cuda_library", found.cuda_library.string()}, {"found_by", memory::name_of(found.found_by)}};
        const std::string where =
            fmt::format("{}, found by {}", found.cpu_library.parent_path().string(), memory::name_of(found.found_by));
        if (!found.is_the_one_compiled_for()) {
          section.mend(
              fmt::format("LibTorch {} is loaded from {}, and this program is compiled for {}: take that "
                          "folder out of the path",
                          found.loaded, where, found.compiled_for));
        } else {
          section.ok(fmt::format("LibTorch {} in {}{}", found.compiled_for, where,
                                 found.cuda_library.empty() ? "" : "; its CUDA library lies beside it"));
        }
        if (found.cpu_library.parent_path() != found.core_library.parent_path()) {
          section.note(fmt::format("libc10.so is another folder's: {}; two LibTorch are mixed",
                                   found.core_library.parent_path().string()));
        }
        if (!found.cuda_library.empty()) return;
        const bool needed = question.device.starts_with("cuda") || question.is_virtual();
        section.add(
            needed ? Severity::kMend : Severity::kNote,
            fmt::format("there is no libtorch_cuda.so beside libtorch_cpu.so, so no GPU can be used and nothing "
                        "planned; install LibTorch with CUDA (pip install --force-reinstall torch=={}, or "
                        "scripts/setup.sh for what was built here)",
                        found.compiled_for));
      });
}

}  // namespace vlmtrain::app
