#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::io {

enum class TemporaryKind {
  kNew,       ///< being written, not yet under its name
  kSetAside,  ///< the previous folder, until the new one has its name
  kGone,      ///< a folder on its way out
};

/// A file or folder of ours with a name that tells whose it is:
/// .<final name>.vlmtrain-<new|old|gone>.<machine>.<process>.<start time>.<number>
struct Temporary {
  std::filesystem::path path;
  std::filesystem::path final_path;
  TemporaryKind kind;
  std::string machine;
  pid_t process;
  uint64_t start_time;  ///< of the process, in ticks since the machine's start: process numbers come back
};

/// A fresh sibling name of `final_path` for this process.
std::filesystem::path temporary_path(const std::filesystem::path& final_path, TemporaryKind kind);

/// What the name of `path` says; nothing where it is not a temporary of ours.
std::optional<Temporary> parse_temporary(const std::filesystem::path& path);

/// The host's name and the process namespace: two containers may share a host name, but not their process numbers.
const std::string& this_machine();

/// Whether the writer runs. REQUIRES: temporary.machine == this_machine().
bool writer_is_alive(const Temporary& temporary);

}  // namespace vlmtrain::io
