#include <fmt/format.h>

#include <cstdlib>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/io/folder_trial.h"

namespace vlmtrain::app {

namespace {

constexpr int64_t kLittleDiskBytes = 2'000'000'000;

/// `name`: what the folder is for.
void examine_folder(Section& section, const std::string& name, const std::filesystem::path& asked,
                    Severity on_trouble) {
  const io::FolderTrial trial = io::try_folder(asked);
  section.facts[name] = {
      {"asked", asked.string()},        {"folder", trial.folder.string()},
      {"free_bytes", trial.free_bytes}, {"writable", trial.failure.empty()},
      {"failure", trial.failure},       {"locks", trial.failure.empty() && trial.lock_failure.empty()},
      {"seconds", trial.seconds}};
  const std::string words = fmt::format("{} {}", name, trial.folder.string());
  if (!trial.failure.empty()) {
    return section.add(on_trouble, fmt::format("{}: nothing can be written: {}", words, trial.failure));
  }
  const std::string free = fmt::format("{:.1f} GB free", in_gigabytes(trial.free_bytes));
  if (!trial.lock_failure.empty()) {
    return section.note(fmt::format("{}: {}; no locks ({}), so nothing keeps a second run out of its folder", words,
                                    free, trial.lock_failure));
  }
  const bool is_little = trial.free_bytes >= 0 && trial.free_bytes < kLittleDiskBytes;
  section.add(is_little ? Severity::kNote : Severity::kOk,
              fmt::format("{}: {}, a file was written, locked and renamed{}", words, free,
                          is_little ? "; that is little for checkpoints" : ""));
}

std::filesystem::path temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

}  // namespace

Section examine_disk(const Question& question) {
  return examine_apart({.name = "disk", .doing = "writing a file"}, [&](Section& section) {
    const bool is_given = !question.output_dir.empty();
    examine_folder(section, is_given ? "output.dir" : "present folder", is_given ? question.output_dir : ".",
                   is_given ? Severity::kMend : Severity::kNote);
    examine_folder(section, "temporary folder", temporary_folder(), Severity::kNote);
  });
}

}  // namespace vlmtrain::app
