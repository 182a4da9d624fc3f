#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::app {

Section examine_host_memory() {
  constexpr int64_t kLowBytes = 2'000'000'000;
  return examine_in_subprocess(
      {.name = "memory", .activity = "looking at the host's memory", .on_failure = Severity::kWarn},
      [](Section& section) {
        const int64_t machine = memory::machine_bytes();
        const int64_t limit = memory::host_limit_bytes();
        const auto available = memory::get_available_host_memory();
        section.facts = {{"machine_bytes", machine},
                         {"limit_bytes", limit},
                         {"room_bytes", available.bytes},
                         {"bound", available.limit_source}};
        const auto text = fmt::format("{:.1f} GB, of which this process can have {:.1f} ({})", to_gigabytes(machine),
                                      to_gigabytes(available.bytes), available.limit_source);
        if (available.bytes >= kLowBytes) return section.ok(text);
        section.warn(text + ": little for training; free memory there, or ask for more (SLURM's --mem)");
      });
}

}  // namespace vlmtrain::app
