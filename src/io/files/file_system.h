#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Returns the error for a file that cannot be read, with a suggestion: a data_error, or a
/// run_error if the process lacks memory or descriptors. `error` is an errno.
UserError make_read_error(const std::filesystem::path& path, int error);

/// Throws run_error if the file system of the existing `folder` has less than `bytes` free. Does
/// nothing if the free space is unknown.
void check_free_space(const std::filesystem::path& folder, int64_t bytes);

/// Flushes a file or folder to the disk. Throws run_error that names `reported_path`. Does nothing
/// if the file system cannot flush folders.
void sync_to_disk(const std::filesystem::path& path, const std::filesystem::path& reported_path);

/// Returns the parent folder of `path`, or "." for a plain name.
std::filesystem::path get_parent_folder(const std::filesystem::path& path);

/// Purpose of a temporary path.
enum class TempPathKind {
  kNew,       ///< a file or folder that is being written
  kBackup,    ///< the previous folder, until the new one has its name
  kRemoving,  ///< a folder that is being removed
};

/// The path of a temporary file or folder, whose name identifies its writer:
/// .<final name>.vlmtrain-<new|old|gone>.<machine>.<pid>.<start ticks>.<number>
struct TempPath {
  std::filesystem::path path;
  std::filesystem::path destination_path;  ///< path of the file or folder when it is complete
  TempPathKind kind;
  std::string machine_id;  ///< get_machine_id() of the writer
  pid_t pid;               ///< process of the writer
  uint64_t start_ticks;    ///< start of the writer in clock ticks after boot, because pids are reused
};

/// Returns an unused temporary path in the folder of `destination_path` for this process. Creates
/// nothing. Thread-safe.
std::filesystem::path make_temp_path(const std::filesystem::path& destination_path, TempPathKind kind);

/// Parses the name of `path`. Returns nothing if make_temp_path() cannot have made it. The file
/// need not exist.
std::optional<TempPath> parse_temp_path(const std::filesystem::path& path);

/// Returns an id of the machine, made from the host name and the pid namespace: two containers may
/// have the same host name, but do not see each other's processes.
const std::string& get_machine_id();

/// Returns true if the writer is running, or if that cannot be determined. REQUIRES:
/// temp.machine_id == get_machine_id().
bool is_writer_alive(const TempPath& temp);

/// Exchanges the names of two existing folders atomically. Returns false if the file system does
/// not support it, as NFS. Throws run_error that names `second` on other failures.
bool try_exchange_paths(const std::filesystem::path& first, const std::filesystem::path& second);

/// Renames `destination_path` to a backup path and returns the backup path. Throws run_error on
/// failure. If the process is killed afterwards, clean_up_abandoned_temp_files() restores the
/// backup.
std::filesystem::path move_to_backup(const std::filesystem::path& destination_path);

/// Replaces `destination_path` by `new_folder` with two renames: the old folder to a backup path,
/// then the new folder to its name. Returns the backup path. If the second rename fails, restores
/// the old folder and throws run_error.
std::filesystem::path replace_folder_in_two_steps(const std::filesystem::path& new_folder,
                                                  const std::filesystem::path& destination_path);

/// The temporary paths of this process that lock_and_remove_temp_files() removes.
struct TempPathRegistry {
  std::mutex mutex;  ///< guards `paths`
  std::set<std::filesystem::path> paths;
};

/// Returns the registry of this process. It is never destroyed, because the process may exit while
/// threads still write.
TempPathRegistry& get_temp_path_registry();

/// Registers `path` and calls `create`, which creates the file or folder. Both happen under the
/// registry's mutex, so lock_and_remove_temp_files() cannot miss the file. Thread-safe.
void register_temp_path(const std::filesystem::path& path, const std::function<void()>& create);

/// Removes `path` from the registry if it is registered. Does not remove the file. Thread-safe.
void unregister_temp_path(const std::filesystem::path& path);

}  // namespace vlmtrain::io
