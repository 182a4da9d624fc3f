#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::io {

enum class TempPathKind {
  kNew,       ///< being written, not yet under its name
  kBackup,    ///< the previous folder, until the new one has its name
  kRemoving,  ///< a folder on its way out
};

/// A file or folder of ours with a name that tells whose it is:
/// .<final name>.vlmtrain-<new|old|gone>.<machine>.<process>.<start time>.<number>
struct TempPath {
  std::filesystem::path path;
  std::filesystem::path final_path;
  TempPathKind kind;
  std::string machine;
  pid_t pid;
  uint64_t start_ticks;  ///< of the process, in ticks since the machine's start: process numbers come back
};

/// A fresh sibling name of `final_path` for this process.
std::filesystem::path make_temp_path(const std::filesystem::path& final_path, TempPathKind kind);

/// What the name of `path` says; nothing where it is not a temporary of ours.
std::optional<TempPath> parse_temp_path(const std::filesystem::path& path);

/// The host's name and the process namespace: two containers may share a host name, but not their process numbers.
const std::string& get_machine_id();

/// Whether the writer runs. REQUIRES: temporary.machine == get_machine_id().
bool is_writer_alive(const TempPath& temp);

}  // namespace vlmtrain::io
