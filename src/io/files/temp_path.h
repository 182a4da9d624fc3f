#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace vlmtrain::io {

/// Purpose of a temporary path.
enum class TempPathKind {
  kNew,       ///< a file or folder that is being written
  kBackup,    ///< the previous folder, until the new one has its name
  kRemoving,  ///< a folder that is being removed
};

/// A temporary file or folder whose name identifies its writer:
/// .<final name>.vlmtrain-<new|old|gone>.<machine>.<pid>.<start ticks>.<number>
struct TempPath {
  std::filesystem::path path;
  std::filesystem::path final_path;
  TempPathKind kind;
  std::string machine;
  pid_t pid;
  uint64_t start_ticks;  ///< start of the process in ticks after boot; distinguishes it from later owners of the pid
};

/// Returns an unused temporary path in the folder of `final_path` for this process.
std::filesystem::path make_temp_path(const std::filesystem::path& final_path, TempPathKind kind);

/// Parses the name of `path`. Returns nothing if it is not a temporary path of ours.
std::optional<TempPath> parse_temp_path(const std::filesystem::path& path);

/// Returns the host name and the pid namespace. Two containers may share a host name, but not their
/// pids.
const std::string& get_machine_id();

/// Returns true while the writer runs. REQUIRES: temp.machine == get_machine_id().
bool is_writer_alive(const TempPath& temp);

/// Exchanges the names of two folders atomically. Returns false if the file system does not support
/// it. Throws run_error on other failures.
bool exchange_names(const std::filesystem::path& first, const std::filesystem::path& second);

/// Renames `final_path` to a backup path and returns that path. clean_up_temporaries() restores it.
std::filesystem::path move_aside(const std::filesystem::path& final_path);

/// Replaces `final_path` by `new_folder` with two renames: the old folder to a backup path, then
/// the new folder to its name. Returns the backup path.
std::filesystem::path replace_in_two_steps(const std::filesystem::path& new_folder,
                                           const std::filesystem::path& final_path);

/// The temporary paths of this process that remove_temp_files() removes. REQUIRES: `mutex` is held
/// for every access.
struct TempPathRegistry {
  std::mutex mutex;
  std::set<std::filesystem::path> paths;
};

/// Returns the registry of this process. It is never destroyed, because the process may exit while
/// threads still write.
TempPathRegistry& temp_path_registry();

/// Registers a path and calls `create`, which creates the file or folder, under the registry's
/// mutex. Thread-safe.
void register_temp_path(const std::filesystem::path& path, const std::function<void()>& create);

/// Removes a path from the registry, if it is there. Thread-safe.
void unregister_temp_path(const std::filesystem::path& path);

}  // namespace vlmtrain::io
