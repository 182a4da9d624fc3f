#include <fmt/format.h>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::app {

Section examine_host_memory() {
  constexpr int64_t kLittleBytes = 2'000'000'000;
  return examine_apart(
      {.name = "memory", .doing = "looking at the host's memory", .on_failure = Severity::kNote}, [](Section& section) {
        const int64_t machine = memory::machine_bytes();
        const int64_t limit = memory::host_limit_bytes();
        const auto room = memory::host_room();
        section.facts = {
            {"machine_bytes", machine}, {"limit_bytes", limit}, {"room_bytes", room.bytes}, {"bound", room.bound}};
        const auto text = fmt::format("{:.1f} GB, of which this process can have {:.1f} ({})", in_gigabytes(machine),
                                      in_gigabytes(room.bytes), room.bound);
        if (room.bytes >= kLittleBytes) return section.ok(text);
        section.note(text + ": little for training; free memory there, or ask for more (SLURM's --mem)");
      });
}

}  // namespace vlmtrain::app
