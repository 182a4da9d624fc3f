#include <fmt/format.h>

#include <cstdlib>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/io/folder_trial.h"

namespace vlmtrain::app {

namespace {

constexpr int64_t kLowDiskBytes = 2'000'000'000;

/// `name`: what the folder is for.
void examine_folder(Section& section, const std::string& name, const std::filesystem::path& folder,
                    Severity failure_severity) {
  const io::FolderProbe probe = io::probe_folder(folder);
  section.facts[name] = {
      {"asked", folder.string()},       {"folder", probe.folder.string()},
      {"free_bytes", probe.free_bytes}, {"writable", probe.failure.empty()},
      {"failure", probe.failure},       {"locks", probe.failure.empty() && probe.lock_failure.empty()},
      {"seconds", probe.seconds}};
  const std::string label = fmt::format("{} {}", name, probe.folder.string());
  if (!probe.failure.empty()) {
    return section.add(failure_severity, fmt::format("{}: nothing can be written: {}", label, probe.failure));
  }
  const std::string free = fmt::format("{:.1f} GB free", to_gigabytes(probe.free_bytes));
  if (!probe.lock_failure.empty()) {
    return section.warn(fmt::format("{}: {}; no locks ({}), so nothing keeps a second run out of its folder", label,
                                    free, probe.lock_failure));
  }
  const bool is_low = probe.free_bytes >= 0 && probe.free_bytes < kLowDiskBytes;
  section.add(is_low ? Severity::kWarn : Severity::kOk,
              fmt::format("{}: {}, a file was written, locked and renamed{}", label, free,
                          is_low ? "; that is little for checkpoints" : ""));
}

std::filesystem::path find_temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

}  // namespace

Section examine_disk(const DoctorContext& context) {
  return examine_in_subprocess({.name = "disk", .activity = "writing a file"}, [&](Section& section) {
    const bool has_output_dir = !context.output_dir.empty();
    examine_folder(section, has_output_dir ? "output.dir" : "present folder", has_output_dir ? context.output_dir : ".",
                   has_output_dir ? Severity::kFail : Severity::kWarn);
    examine_folder(section, "temporary folder", find_temporary_folder(), Severity::kWarn);
  });
}

}  // namespace vlmtrain::app
